"""PyTorch's own tests of torch.distributed, over gradtide; torch_suite.toml: which, and what is left out and why."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LISTS = tomllib.loads((HERE / "torch_suite.toml").read_text())


def start(backend, world_size, names, like="gloo"):
    command = [sys.executable, str(HERE / "torch_suite.py"), backend, like, str(world_size), *names]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finish(process, timeout_s):
    """What became of each test."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        process.communicate()
    return {result["test"]: result for result in map(json.loads, said.splitlines())}


def assert_passed(results, names):
    missing = {name: results.get(name, {"said": "nothing", "why": ""}) for name in names}
    bad = [f"{name} {r['said']}: {r['why']}" for name, r in missing.items() if r["said"] != "passed"]
    assert not bad, f"{len(bad)} of {len(names)}:\n" + "\n".join(bad)


def test_what_gloo_passes_gradtide_passes():
    """Two at a time: the tests mostly wait for each other's processes."""
    halves = [LISTS["world_size_3"][half::2] for half in range(2)]
    processes = [start("gradtide", 3, names) for names in halves]
    for process, names in zip(processes, halves, strict=True):
        assert_passed(finish(process, 400), names)
    names = LISTS["world_size_4"]
    assert_passed(finish(start("gradtide", 4, names), 300), names)


@pytest.mark.slow
def test_what_is_for_mpi_alone_gradtide_passes_too():
    assert_passed(finish(start("gradtide", 3, LISTS["like_mpi"], like="mpi"), 300), LISTS["like_mpi"])


def test_the_lists_name_every_test_once():
    listed = [*LISTS["world_size_3"], *LISTS["world_size_4"], *LISTS["like_mpi"]]
    listed += [name for reason in LISTS["left_out"] for name in reason["tests"]]
    assert len(listed) == len(set(listed))
    assert {name for gate in LISTS["gates"] for name in gate["tests"]} <= set(listed)


@pytest.mark.slow  # everything, over Gloo too
@pytest.mark.parametrize(("world_size", "key"), [(3, "world_size_3"), (4, "world_size_4")])
def test_the_lists_hold_everything_that_gloo_passes(world_size, key):
    known = set(LISTS["world_size_3"]) | set(LISTS["world_size_4"])
    refused = set(LISTS["left_out"][0]["tests"])
    names = [] if world_size == 3 else LISTS[key]
    theirs = finish(start("gloo", world_size, names), 1800)
    passed = {name for name, result in theirs.items() if result["said"] == "passed"}
    assert passed - known <= refused
    assert set(LISTS[key]) <= passed
