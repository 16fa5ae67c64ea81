"""A plan that is made while everything is recorded."""

from pathlib import Path

from recorder import Recorder

import gradtide


def make_plan(folder: Path) -> None:
    recorder = Recorder(folder, "planner")
    recorder.install()
    recorder.flag[0] = 1
    gradtide.plan("pcie-4gpu", 160_000_000)
    recorder.flag[0] = 0
    recorder.write()
