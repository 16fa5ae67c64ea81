"""What compression left out is in checkpoints: runs go on from them bit for bit, and onto other workers in sum."""

import subprocess
from pathlib import Path

import compressed_resume_script
import pytest
import torch

from loaded_python import loaded_python

HERE = Path(__file__).parent


def run(folder, what, workers):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(workers)]
    command += [str(HERE / "compressed_resume_script.py"), str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{what}-{rank}.pt") for rank in range(workers)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compressed")


@pytest.fixture(scope="module")
def whole(folder):
    return run(folder, "whole", 2)


@pytest.mark.parametrize("case", compressed_resume_script.CASES)
def test_a_run_goes_on_as_if_it_had_never_stopped(whole, case):
    for found in whole:
        wanted = found[f"{case} plain"]
        assert all(torch.equal(found[case][name], wanted[name]) for name in wanted)
        lefts = [left for name, left in found[f"{case} left"].items() if name.startswith("left ")]
        assert any(left.any() for left in lefts) or "int8" in case


@pytest.fixture(scope="module", params=[1, 3])
def resumed(request, folder, whole):
    return run(folder, "resumed", request.param)


@pytest.mark.parametrize("case", compressed_resume_script.SUMMED)
def test_onto_another_number_of_workers_the_sum_of_what_was_left_out_is_kept(whole, resumed, case):
    names = [name for name in whole[0][f"{case} left"] if name.startswith("left ")]
    for name in names:
        kept = sum(found[f"{case} left"][name] for found in resumed if name in found[f"{case} left"])
        assert torch.equal(kept, sum(found[f"{case} left"][name] for found in whole))
    assert names
    for found in resumed:
        assert all(torch.equal(found[case][name], resumed[0][case][name]) for name in found[case])
    assert any("what compression had left out of all is kept in sum" in line for line in resumed[0]["said"])


def test_in_fit_gradients_of_a_state_that_a_callback_gives_up_never_come():
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2"]
    command += [str(HERE / "compressed_load_script.py"), "topk:0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
