"""PyTorch's own tests of torch.distributed, run over a backend: torch_suite.py BACKEND [TEST ...]

Prints one JSON object a test: its name, whether it passed, was skipped or failed, the seconds it took, and why.

Most of these tests are gated: they compare the name of the backend with "gloo", which is read from the environment when
the module is imported. It is imported as if for Gloo, which opens every gate that is open for Gloo, and told the
backend's name afterwards. Processes are forked instead of spawned: an import of torch a process and test would take
two seconds each.
"""

import io
import json
import os
import sys
import tempfile
import time
import unittest

WORLD_SIZE = "3"  # sub-groups of these tests are ranks 1 and 2


def main(backend: str, names: list[str]) -> None:
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": WORLD_SIZE, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="gradtide-suite-") as folder:
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(f"{folder}/{name}")
        suite = prepared(backend)
        for name in names or unittest.defaultTestLoader.getTestCaseNames(suite):
            print(json.dumps(outcome(suite, name)), flush=True)


def prepared(backend: str) -> type[unittest.TestCase]:
    import torch
    import torch.testing._internal.distributed.distributed_test as tests

    if backend == "gradtide":
        from gradtide.collective.preload import load
        from gradtide.registration import register

        register()
        load()
    tests.BACKEND = backend
    # Two tests ask whether this is set by the launcher of PyTorch's own suite.
    torch.set_num_threads(1)

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def outcome(suite: type[unittest.TestCase], name: str) -> dict[str, object]:
    result = unittest.TestResult()
    begin = time.monotonic()
    suite(name).run(result)
    why = "".join(text for _, text in result.errors + result.failures + result.skipped)
    said = "failed" if result.errors or result.failures else "skipped" if result.skipped else "passed"
    return {"test": name, "said": said, "seconds": round(time.monotonic() - begin, 2), "why": why[-3000:]}


if __name__ == "__main__":
    assert isinstance(sys.stdout, io.TextIOBase)
    main(sys.argv[1], sys.argv[2:])
