"""fit on workers of which each reads its part alone: what one process trains, and each sample read once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from loaded_python import loaded_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import parts_fit  # noqa: E402


def run(folder, *cases, options=("--workers", "2")):
    command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / "parts_fit.py"), str(folder), *cases]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(path) for path in sorted(folder.glob("found-*.pt"))]


def assert_equal(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def check(case, found):
    parameters, reads = parts_fit.train(case)
    for worker in found:
        assert_equal(worker[case][0], parameters)
    return Counter(reads), [Counter(worker[case][1]) for worker in found]


def test_workers_that_read_their_parts_train_what_one_process_trains(tmp_path):
    found = run(tmp_path, "a dataset", "accumulated", "ignored targets", "a dataset that draws")
    for case in ("a dataset", "accumulated"):
        alone, (first, second) = check(case, found)
        assert first + second == alone
        assert abs(first.total() - second.total()) <= 2 * 7  # an odd sample of each batch
    alone, (first, second) = check("ignored targets", found)
    # In its first batch worker 0 looks whether there is anything to learn from in the rest.
    assert first + second == alone + Counter(range(7)) + Counter(range(7))
    for worker in found:  # as what all workers draw in fit's reader is drawn while others draw, it is not compared
        assert set(worker["a dataset that draws"][1]) == set(range(parts_fit.SAMPLES))
    for worker in found:  # bit for bit, and of the batches that were done none is read but the first
        parameters, reads = worker["a dataset, resumed"]
        for a, b in zip(parameters, worker["a dataset"][0], strict=True):
            assert torch.equal(a, b)
        assert len(reads) < 0.5 * len(worker["a dataset"][1])


@pytest.mark.slow
def test_with_processes_too(tmp_path):
    found = run(tmp_path, "processes")
    check("processes", found)
    for worker in found:
        for a, b in zip(worker["processes, resumed"][0], worker["processes"][0], strict=True):
            assert torch.equal(a, b)


@pytest.mark.slow
def test_a_worker_who_is_left_reads_what_the_other_would_have(tmp_path):
    (found,) = run(tmp_path, "dies", options=("--workers", "2", "--min-workers", "1"))
    parameters, reads = parts_fit.train("a dataset")
    assert_equal(found["dies"][0], parameters)
    assert len(reads) / 2 < len(found["dies"][1]) < len(reads)
