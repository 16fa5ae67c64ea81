"""What scripts/test runs: checks of the code beside two lanes of tests, then the tests that measure time, alone.

    python tests/suite.py            everything that CI runs
    python tests/suite.py --quick    tests marked quick, some of every room: a minute or so
    python tests/suite.py ...        one pytest with these arguments, once the checks are through

However it or its pytests end, no process is left.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from leftovers import adopt_orphans, end_all

TESTS = Path(__file__).parent
ROOT = TESTS.parent
BIN = Path(sys.executable).parent
AT_ONCE = (["ruff", "check", "."], ["ruff", "format", "--check", "."])
PINNED = f"torch=={version('torch').partition('+')[0]}" in (ROOT / "constraints.txt").read_text().splitlines()
# Under another torch some of the comments that mypy needs for the pinned one are for nothing.
BESIDE = (["mypy", *([] if PINNED else ["--no-warn-unused-ignores"])], ["lint-imports", "--no-cache"])
GRACE_S = 10.0  # for a pytest that is interrupted to end its fixtures and say what it has found
_PR_SET_PDEATHSIG = 1
_NOTHING_SELECTED = 5  # an exit code of pytest's


class Program:
    """A program in a session of its own: Ctrl-C reaches us alone. If it is to be quiet, what it says is kept."""

    def __init__(self, name: str, *arguments: str, quiet: bool = False) -> None:
        self.said: BinaryIO | None = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115
        self.process = subprocess.Popen(
            [BIN / name, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=subprocess.STDOUT if quiet else None,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )

    def show(self) -> None:
        if self.said is not None:
            self.said.seek(0)
            shutil.copyfileobj(self.said, sys.stdout.buffer)
            sys.stdout.flush()

    def code(self) -> int:
        """Waits for it."""
        code = self.process.wait()
        return 0 if code == _NOTHING_SELECTED else code


def main(arguments: list[str]) -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # some hundred processes would compile the package anew
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if any(Program(*command).code() for command in AT_ONCE):
            return 1
        checks = [Program(*command, quiet=True) for command in BESIDE]
        if Program("python", "tests/collective/warm.py").code():  # else several lanes compile the same kernels
            return 1
        if arguments in ([], ["--quick"]):
            return some_of_every_room(checks) if arguments else everything(checks)
        return outcome(checks) or together([pytest(*arguments)])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        end_all()


def everything(checks: list[Program]) -> int:
    code = in_lanes(3, checks, "-m", "not slow and not timing")  # on two cores: some tests wait more than they compute
    return together([pytest("-m", "timing and not slow", *files_with("timing"))]) or code


def some_of_every_room(checks: list[Program]) -> int:
    return in_lanes(2, checks, "-m", "quick and not slow and not timing", *files_with("quick"))


def in_lanes(count: int, checks: list[Program], *arguments: str) -> int:
    with tempfile.TemporaryDirectory(prefix="gradtide-test-") as folder:
        lanes = [pytest(f"--lane={folder}/taken", *arguments, quiet=number > 0) for number in range(count)]
        return outcome(checks) or together(lanes)


def files_with(marker: str) -> list[str]:
    """Test files that use a marker: pytest need not import the others to find out."""
    return sorted(str(path) for path in TESTS.rglob("test_*.py") if f"mark.{marker}" in path.read_text())


def pytest(*arguments: str, quiet: bool = False) -> Program:
    return Program("python", "-m", "pytest", *arguments, quiet=quiet)


def outcome(checks: list[Program]) -> int:
    """Shows the first that fails, and waits for no other."""
    for check in checks:
        if code := check.code():
            check.show()
            return code
    return 0


def together(pytests: list[Program]) -> int:
    """Waits for all, and shows what they said; the first code that is not 0."""
    try:
        codes = [each.code() for each in pytests]
    except KeyboardInterrupt:
        interrupt(pytests)
        raise
    finally:
        for each in pytests:
            each.show()
    return next((code for code in codes if code), 0)


def interrupt(pytests: list[Program]) -> None:
    deadline_s = time.monotonic() + GRACE_S
    for each in pytests:
        each.process.terminate()
    while any(each.process.poll() is None for each in pytests) and time.monotonic() < deadline_s:
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
