"""AlexNet, split in many ways: one step at full width, twenty steps at an eighth of it; to 1e-10 in float64.

All of it is slow: a step at full width takes half a minute of CPU, and all devices together take 5 GB of memory.
"""

import shutil

import pytest
import split_runs as runs
import torch

EXACT = 1e-10
KINDS = (
    "pipeline 2", "pipeline 3", "tensor 2", "data 2 pipeline 2", "data 2 tensor 2", "copies, then shards",
    "copies, then shards on others",
)  # fmt: skip
FULL = ("alexnet in full", "momentum", 1, None)
TWENTY = [
    ("alexnet", "momentum", 20, None), ("alexnet", "adamw", 20, 0.05), ("alexnet without dropout", "momentum", 20, None)
]  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The file with what one device gives: a large model's results are mapped, and not kept in memory."""
    folder = tmp_path_factory.mktemp("alone")

    def made(run):
        path = folder / str(abs(hash(run)))
        if not path.exists():
            torch.save(runs.alone(*run), path)
        return str(path)

    yield made
    shutil.rmtree(folder)


def check_threads(path, run, kind):
    name, optimizer, steps, clip_norm = run
    found = runs.on_devices(runs.LAYOUTS[kind], name, optimizer, kind, steps, clip_norm)
    assert runs.largest_difference(found, torch.load(path, mmap=True, weights_only=True)) < EXACT


def check_processes(processes, path, run, kind):
    name, optimizer, steps, clip_norm = run
    options = (name, optimizer, kind, steps, clip_norm, torch.float64, (runs.BATCH,), 4)
    size = runs.LAYOUTS[kind]
    processes.start(runs.farthest_rank, size, runs.new_name(), path, *options)
    assert max(processes.answer(rank, timeout_s=1800) for rank in range(size)) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", TWENTY, ids=str)
def test_twenty_steps_at_an_eighth_of_its_width_on_devices_of_one_process(reference, run, kind):
    check_threads(reference(run), run, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", TWENTY, ids=str)
def test_twenty_steps_at_an_eighth_of_its_width_on_processes(device_processes, reference, run, kind):
    check_processes(device_processes, reference(run), run, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_at_full_width_on_devices_of_one_process(reference, kind):
    check_threads(reference(FULL), FULL, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipeline 3", "tensor 2", "copies, then shards"])
def test_a_step_at_full_width_on_processes(device_processes, reference, kind):
    check_processes(device_processes, reference(FULL), FULL, kind)
