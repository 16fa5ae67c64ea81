"""examples/own_loop.py: one process and two workers print the same, once, and a run goes on where it was."""

import re
import subprocess
from pathlib import Path

import pytest

from loaded_python import loaded_python

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_loop.py"


def run(folder, *launcher, epochs=2):
    command = [loaded_python(), *launcher, str(EXAMPLE), "--epochs", str(epochs), "--folder", str(folder)]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"epoch (\d+): loss ([\d.]+), accuracy ([\d.]+)", done.stdout)
    return [(int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in found]


def test_one_process_and_two_workers_see_the_same_and_one_prints(tmp_path):
    one = run(tmp_path / "one")
    two = run(tmp_path / "two", "-m", "gradtide", "run", "--workers", "2")
    assert [epoch for epoch, _, _ in two] == [1, 2]
    assert two[-1][2] > 0.8
    for mine, theirs in zip(one, two, strict=True):
        assert mine == pytest.approx(theirs, abs=5e-3)  # float32, added up in another order
    assert (tmp_path / "two" / "best.pt").exists()
    assert [epoch for epoch, _, _ in run(tmp_path / "two", epochs=3)] == [3]
