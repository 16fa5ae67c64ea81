"""`gradtide run` as a process, on scripts that tests write."""

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def start(*arguments, command=("-m", "gradtide", "run"), **options):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment} | options
    return subprocess.Popen([sys.executable, *command, *map(str, arguments)], **options)


def finish(process):
    with process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Outcome(process.returncode, (out or b"").decode(), (err or b"").decode())


def run(*arguments, **options):
    return finish(start(*arguments, **options))


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, timeout_s=LIMIT_S):
    """The seconds that it took."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() < started_s + timeout_s
        select.select([], [], [], 0.01)
    return time.monotonic() - started_s


def read_lines(stream, count):
    return [stream.readline().decode() for _ in range(count)]
