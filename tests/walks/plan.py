"""A plan that is made while everything is recorded: plan.py FOLDER."""

import sys
from pathlib import Path

from recorder import Recorder

import gradtide

recorder = Recorder(Path(sys.argv[1]), "planner")
recorder.install()
recorder.flag[0] = 1
print(gradtide.plan("pcie-4gpu", 160_000_000))
recorder.flag[0] = 0
recorder.write()
