"""Checkpoints of workers that step by themselves: where they met, with what is each worker's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradtide.checkpoint.shelf import Shelf
from loaded_python import loaded_python

HERE = Path(__file__).parent


def run(folder, workers, what):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(workers)]
    done = subprocess.run(
        [*command, str(HERE / "local_resume_script.py"), str(folder), what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{what}-{rank}.pt", weights_only=True) for rank in range(workers)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    return folder, run(folder, 2, "whole")


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return one == other


def test_a_run_that_goes_on_where_workers_met_is_the_uninterrupted_one_bit_for_bit(trained):
    folder, found = trained
    assert Shelf(folder / "stopped").newest().manifest.step == 10  # asked for at step 9, in a window that ends with 10
    for one in found:
        assert same(one["kept"], one["plain"])
        assert same(one["resumed"]["values"], one["plain"]["values"])
        assert one["resumed"]["seen"] == one["plain"]["seen"]
        assert one["resumed"]["losses"] == {step: loss for step, loss in one["plain"]["losses"].items() if step > 10}
        assert same(one["resumed"]["inner"], one["plain"]["inner"])
    assert not same(found[0]["plain"]["inner"], found[1]["plain"]["inner"])


def test_on_another_number_of_workers_it_is_said_whose_optimizer_state_is_whose(trained):
    folder, (first, second) = trained
    assert Shelf(folder / "kept").newest().manifest.step == 12
    found = run(folder, 3, "resumed")
    assert any("worker i goes on with the optimizer state that worker i mod 2 had" in line for line in found[0]["said"])
    for one, before in zip(found, (first, second, first), strict=True):
        assert same(one["resumed"]["inner"], before["kept"]["inner"])
        assert same(one["resumed"]["values"], before["kept"]["values"])
