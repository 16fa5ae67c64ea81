"""fit over DataLoaders that shuffle: the order of one process on workers, and bit for bit after a resume."""

import contextlib
import subprocess
from functools import cache
from pathlib import Path

import drawn_fit
import pytest
import torch
from drawn_fit import CASES, RESUMED, SEEDED_ALIKE

import gradtide
from gradtide.events import BatchDone
from loaded_python import loaded_python

HERE = Path(__file__).parent
alone = cache(drawn_fit.train)


def on_workers(folder, workers, *words):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(workers), str(HERE / "drawn_fit.py")]
    done = subprocess.run([*command, str(folder), *words], capture_output=True, text=True, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(workers)]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_loader_that_shuffles_has_the_order_of_one_process_on_workers(tmp_path, workers):
    """That of worker 0's seed, whatever those of the others are; its generator is where one process's would be."""
    for rank, worker in enumerate(on_workers(tmp_path, workers, *CASES)):
        for case, found in worker.items():
            one = alone(case)
            assert found["loss"] == pytest.approx(one["loss"], abs=1e-10), case
            for name, tensor in one["state"].items():
                assert torch.allclose(found["state"][name], tensor, rtol=0, atol=1e-10), (case, name)
            if rank == 0 or case in SEEDED_ALIKE:
                assert torch.equal(found["next"], one["next"]), case


def test_a_split_model_has_the_order_of_one_process_on_workers(tmp_path):
    for worker in on_workers(tmp_path, 2, "split", "shuffle", "both"):
        for case, found in worker.items():
            assert found["loss"] == pytest.approx(alone(case)["loss"], abs=1e-10), case


class Stop(Exception):
    pass


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.parametrize("stop_at", [4, 7])
def test_a_run_over_a_loader_that_draws_goes_on_bit_for_bit(tmp_path, case, stop_at):
    """Stopped within the first epoch and within the second; the program makes its generators anew."""

    def stop(event):
        if isinstance(event, BatchDone) and event.step == stop_at:
            raise Stop

    keeping = {"checkpoints": gradtide.Checkpoints(str(tmp_path), every=3), "resume": True}
    with contextlib.suppress(Stop):
        drawn_fit.train(case, **keeping, emit=stop)
    resumed, whole = drawn_fit.train(case, **keeping), alone(case)
    assert resumed["loss"] == whole["loss"]
    assert all(torch.equal(resumed["state"][name], tensor) for name, tensor in whole["state"].items())
    assert torch.equal(resumed["next"], whole["next"])
