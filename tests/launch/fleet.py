"""A head and agents as processes: on this machine, or each in a network namespace of its own."""

import json
import os
import re
import secrets
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from runs import LIMIT_S, lives, wait_until

HERE = Path(__file__).parent
STEP = re.compile(r"\[\s*(\d+)\] step (\d+) of (\d+) at ([\d.]+)")


@dataclass(frozen=True)
class Step:
    worker: int
    batch: int
    size: int
    at_s: float


@dataclass
class Fleet:
    """`inside`: for each host, what to put before a command; the head is on the first."""

    script: Path
    arguments: tuple[str, ...] = ()
    workers: int = 2
    nodes: tuple[str, ...] = ("a", "b")
    slots: int = 1
    needed: int | None = None
    restarts: int = 0
    preload: str = ""
    host: str = "127.0.0.1"
    inside: list[list[str]] = field(default_factory=lambda: [[]] * 8)
    python: str = sys.executable

    def __post_init__(self):
        self.secret = f"gradtide-key root - {secrets.token_hex(32)}\n".encode()
        asked = {
            "host": self.host, "nodes": self.nodes, "workers": self.workers, "needed": self.needed,
            "restarts": self.restarts, "script": str(self.script), "arguments": self.arguments, "preload": self.preload,
        }  # fmt: skip
        self.head = subprocess.Popen(
            [*self.inside[0], self.python, str(HERE / "head_program.py"), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"},
        )
        self.head.stdin.write(self.secret)
        self.head.stdin.flush()
        self.address = self.head.stdout.readline().decode().strip()
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.agents = {}

    def _read(self):
        for line in self.head.stdout:
            self.lines.append(line.decode().rstrip("\n"))

    @property
    def text(self):
        return "\n".join(self.lines)

    def start(self, name, host=0, secret=None, path="", **options):
        """An agent of that name; its secret goes through a pipe. `path`: where its Python looks first."""
        first = [*filter(None, [path]), str(HERE), *sys.path]
        read, write = os.pipe()
        os.write(write, secret or self.secret)
        os.close(write)
        command = [*self.inside[host], self.python, "-m", "gradtide.launch.agent", self.address]
        try:
            self.agents[name] = subprocess.Popen(
                [*command, "--node", name, "--slots", str(self.slots), "--secret-fd", str(read)],
                pass_fds=[read],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(first), "OMP_NUM_THREADS": "1"},
                **options,
            )
        finally:
            os.close(read)
        return self.agents[name]

    def steps(self):
        return [
            Step(int(found[1]), int(found[2]), int(found[3]), float(found[4]))
            for line in list(self.lines)
            if (found := STEP.match(line))
        ]

    def await_step(self, wanted, timeout_s=2 * LIMIT_S):
        """The first step that is wanted."""
        found = []

        def look():
            assert self.head.poll() is None, self.text
            found[:] = [step for step in self.steps() if wanted(step)]
            return found

        wait_until(look, timeout_s)
        return found[0]

    def finish(self):
        code = self.head.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Nothing that was started here is left, whatever happened."""
        for process in (self.head, *self.agents.values()):
            if process.poll() is None:
                process.kill()
            process.wait()
        self._reader.join(LIMIT_S)
        self.head.stdin.close()
        self.head.stdout.close()


def is_gone(pid):
    return not lives(pid)
