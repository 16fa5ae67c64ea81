"""PyTorch's own tests of torch.distributed over a backend: torch_suite.py BACKEND LIKE WORLD_SIZE HOSTS [TEST ...]

Prints one JSON object a test: its name, whether it passed, was skipped or failed, the seconds it took, and why.

Many of these tests compare the name of the backend with "gloo": when the module is imported, which is done as if for
LIKE, and while they run, when the name that they compare is one that equals "gloo" too. So every gate that is open for
Gloo is open for gradtide. (LIKE mpi opens those of all_to_all on the CPU, which Gloo is not tested for.) Tests of
sub-groups want eight processes, or MPI, which they look up in the environment as they run: it says MPI, for Gloo too.
Processes are forked instead of spawned: an import of torch for each would take two seconds.

With HOSTS above 1 the ranks are shared out to as many network namespaces, in which a host's name stands for its
address. The tests themselves meet through files.
"""

import json
import os
import socket
import sys
import tempfile
import time
import unittest
from contextlib import ExitStack
from typing import Any, TextIO


def main(backend: str, like: str, world_size: str, hosts: str, names: list[str], results: TextIO) -> None:
    os.environ |= {"BACKEND": like, "WORLD_SIZE": world_size, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-suite-"))
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(f"{folder}/{name}")
        suite = prepared(backend, namespaces(stack, int(hosts)))
        for name in names or unittest.defaultTestLoader.getTestCaseNames(suite):
            print(json.dumps(outcome(suite, name)), file=results, flush=True)


def namespaces(stack: ExitStack, hosts: int) -> list[str]:
    if hosts == 1:
        return []
    from gradtide.testing.hosts import several_hosts

    return [command[-1] for command in stack.enter_context(several_hosts(hosts, ""))]


def go_to_host(rank: int, world_size: int, hosts: list[str]) -> None:
    """This process, in which no other thread runs yet."""
    from ranks import enter

    from gradtide.testing.hosts import ADDRESSES

    number = rank * len(hosts) // world_size
    enter(hosts[number])
    own = ADDRESSES[number]
    socket.gethostbyname = lambda name: own  # type: ignore[assignment]


class OpenGate(str):
    """The name of a backend that is treated as Gloo is."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def prepared(backend: str, hosts: list[str]) -> type[unittest.TestCase]:
    import torch
    import torch.testing._internal.distributed.distributed_test as tests

    if backend == "gradtide":
        import gradtide.collective.c10d.creating  # noqa: F401
        from gradtide.collective.groups.preload import load
        from gradtide.registration import register

        register()
        load()
    tests.BACKEND = OpenGate(backend)
    os.environ["BACKEND"] = "mpi"
    torch.set_num_threads(1)

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **keywords: Any) -> None:
            if hosts:
                go_to_host(rank, int(os.environ["WORLD_SIZE"]), hosts)
            super()._run(rank, *arguments, **keywords)

    return Suite


def outcome(suite: type[unittest.TestCase], name: str) -> dict[str, object]:
    result = unittest.TestResult()
    begin = time.monotonic()
    suite(name).run(result)
    why = "".join(text for _, text in result.errors + result.failures + result.skipped)
    said = "failed" if result.errors or result.failures else "skipped" if result.skipped else "passed"
    return {"test": name, "said": said, "seconds": round(time.monotonic() - begin, 2), "why": why[-3000:]}


if __name__ == "__main__":
    # What the tests print, in their own processes too, goes to standard error.
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        main(*sys.argv[1:5], sys.argv[5:], told)
