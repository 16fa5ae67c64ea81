"""PyTorch's own tests of torch.distributed, over gradtide; torch_suite.toml: which, and what is left out and why."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from gradtide.errors import ConfigError
from gradtide.testing.hosts import several_hosts

HERE = Path(__file__).parent
LISTS = tomllib.loads((HERE / "torch_suite.toml").read_text())


class Run:
    """A process that runs some of the tests, or all if there are no names."""

    def __init__(self, backend, world_size, names=(), like="gloo", hosts=1):
        kind = (backend, like, str(world_size), str(hosts))
        command = [sys.executable, str(HERE / "torch_suite.py"), *kind, *names]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._names = names
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True
        )

    def results(self, timeout_s):
        """What became of each test, by name."""
        said, _ = self._process.communicate(timeout=timeout_s)
        self._errors.seek(0)
        assert self._process.returncode == 0, self._errors.read()[-2000:]
        return {result["test"]: result for result in map(json.loads, said.splitlines())}

    def close(self):
        with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def assert_passed(self, timeout_s):
        results = self.results(timeout_s)
        bad = [f"{name}: {results[name]['why']}" for name in self._names if results[name]["said"] != "passed"]
        assert not bad, f"{len(bad)} of {len(self._names)}:\n" + "\n".join(bad)


@pytest.fixture
def start():
    started = []

    def run(*arguments, **keywords):
        started.append(Run(*arguments, **keywords))
        return started[-1]

    yield run
    for each in started:
        each.close()


def test_some_of_what_gloo_passes_gradtide_passes(start):
    start("gradtide", 3, LISTS["some_of_size_3"]).assert_passed(400)


@pytest.mark.slow
def test_what_gloo_passes_gradtide_passes(start):
    """Two at a time: the tests mostly wait for their own processes."""
    runs = [start("gradtide", 3, LISTS["world_size_3"][half::2]) for half in range(2)]
    for run in runs:
        run.assert_passed(400)
    start("gradtide", 4, LISTS["world_size_4"]).assert_passed(120)


def test_the_lists_name_every_test_once():
    listed = [*LISTS["world_size_3"], *LISTS["world_size_4"], *LISTS["like_mpi"]]
    listed += [name for reason in LISTS["left_out"] for name in reason["tests"]]
    assert len(listed) == len(set(listed))
    assert set(LISTS["some_of_size_3"]) < set(LISTS["world_size_3"])
    assert {name for gate in LISTS["gates"] for name in gate["tests"]} <= set(listed)


@pytest.mark.slow
def test_what_is_for_mpi_alone_gradtide_passes_too(start):
    start("gradtide", 3, LISTS["like_mpi"], like="mpi").assert_passed(300)


@pytest.mark.slow
def test_what_gloo_passes_gradtide_passes_between_hosts(start):
    try:
        with several_hosts(2, ""):
            pass
    except ConfigError as error:
        pytest.skip(str(error))
    runs = [start("gradtide", 3, LISTS["world_size_3"][half::2], hosts=2) for half in range(2)]
    for run in runs:
        run.assert_passed(900)
    start("gradtide", 4, LISTS["world_size_4"], hosts=2).assert_passed(240)
    start("gradtide", 3, LISTS["like_mpi"], like="mpi", hosts=2).assert_passed(400)


@pytest.mark.slow  # everything, over Gloo
@pytest.mark.parametrize("world_size", [3, 4])
def test_the_lists_hold_everything_that_gloo_passes(start, world_size):
    results = start("gloo", world_size).results(1800)
    passed = {name for name, result in results.items() if result["said"] == "passed"}
    refused = set(LISTS["left_out"][0]["tests"])
    assert passed - refused <= {*LISTS["world_size_3"], *LISTS["world_size_4"]}
    assert set(LISTS[f"world_size_{world_size}"]) <= passed
