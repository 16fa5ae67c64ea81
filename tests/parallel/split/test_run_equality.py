"""A split model is the same model: losses, parameters, optimizer state and outputs of a few steps, to 1e-10 in float64.

A small covering array runs by default; the whole product is slow.
"""

from functools import cache

import pytest
import split_runs as runs
import torch

EXACT = 1e-10
SIZES = (33, 5)  # the second batch has fewer samples than there are micro-batches times copies


@cache
def reference(name, optimizer, clip_norm, dtype=torch.float64):
    return runs.alone(name, optimizer, 3, clip_norm, dtype, SIZES)


def check_threads(name, optimizer, clip_norm, kind):
    found = runs.on_devices(runs.LAYOUTS[kind], name, optimizer, kind, 3, clip_norm, sizes=SIZES)
    assert runs.largest_difference(found, reference(name, optimizer, clip_norm)) < EXACT


def check_processes(processes, name, optimizer, clip_norm, kind):
    size = runs.LAYOUTS[kind]
    options = (name, optimizer, kind, 3, clip_norm, torch.float64, SIZES, 4)
    expected = reference(name, optimizer, clip_norm)
    for found in processes.run(runs.as_rank, size, runs.new_name(), *options):
        assert runs.largest_difference(found, expected) < EXACT


COVERING_THREADS = [
    ("mlp", "momentum", None, "pipeline 2"),
    ("mlp", "adamw", 0.05, "copies, then shards on others"),
    ("lenet", "adamw", 0.05, "pipeline 3"),
    ("lenet", "momentum", None, "data 2 tensor 2"),
    ("transformer", "adamw", 0.05, "there and back"),
    ("transformer", "momentum", 0.05, "copies, then shards"),
    ("transformer", "adamw", None, "data 2 pipeline 2"),
    ("transformer", "momentum", None, "again"),
    ("alexnet", "momentum", 0.05, "tensor 2"),
]
COVERING_PROCESSES = [
    ("mlp", "adamw", 0.05, "pipeline 3"),
    ("mlp", "momentum", None, "data 2 tensor 2"),
    ("lenet", "momentum", 0.05, "copies, then shards"),
    ("transformer", "adamw", 0.05, "pipeline 2"),
    ("transformer", "momentum", None, "copies, then shards on others"),
    ("transformer", "adamw", 0.05, "tensor 2"),
]
RULES = [("momentum", None), ("momentum", 0.05), ("adamw", None), ("adamw", 0.05)]
ALL = [(name, *rule, kind) for name in runs.MODELS for rule in RULES for kind in runs.LAYOUTS]


@pytest.mark.parametrize(("name", "optimizer", "clip_norm", "kind"), COVERING_THREADS)
def test_on_devices_of_one_process(name, optimizer, clip_norm, kind):
    check_threads(name, optimizer, clip_norm, kind)


@pytest.mark.parametrize(("name", "optimizer", "clip_norm", "kind"), COVERING_PROCESSES)
def test_on_processes(device_processes, name, optimizer, clip_norm, kind):
    check_processes(device_processes, name, optimizer, clip_norm, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer", "clip_norm", "kind"), ALL)
def test_all_on_devices_of_one_process(name, optimizer, clip_norm, kind):
    check_threads(name, optimizer, clip_norm, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer", "clip_norm", "kind"), ALL)
def test_all_on_processes(device_processes, name, optimizer, clip_norm, kind):
    check_processes(device_processes, name, optimizer, clip_norm, kind)


def check_single(name, kind):
    expected = reference(name, "sgd", None, torch.float32)
    found = runs.on_devices(runs.LAYOUTS[kind], name, "sgd", kind, 3, None, torch.float32, SIZES)
    assert runs.largest_difference(found, expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "kind"), [("lenet", "copies, then shards"), ("transformer", "pipeline 3"), ("mlp", "data 2 tensor 2")]
)
def test_single_precision_is_close_too(name, kind):
    check_single(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", runs.LAYOUTS)
@pytest.mark.parametrize("name", runs.MODELS)
def test_all_are_close_in_single_precision(name, kind):
    check_single(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", runs.LAYOUTS)
@pytest.mark.parametrize("name", runs.MODELS)
def test_all_are_close_in_single_precision_on_processes(device_processes, name, kind):
    expected = reference(name, "sgd", None, torch.float32)
    options = (name, "sgd", kind, 3, None, torch.float32, SIZES, 4)
    for found in device_processes.run(runs.as_rank, runs.LAYOUTS[kind], runs.new_name(), *options):
        assert runs.largest_difference(found, expected) < 1e-5
