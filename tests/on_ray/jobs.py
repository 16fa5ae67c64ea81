"""`gradtide run --engine ray` from a node of the cluster, and what it shows."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ray_cluster import QUIET, pids_in

HERE = Path(__file__).parent
ADDRESSES = re.compile(r"\d+ on (10\.77\.0\.\d+)")
LINES_S = 120.0
FORGETS_S = 90.0  # Ray, a node that was killed


class RayRun:
    """A job under way. Its lines are kept in the order they came."""

    def __init__(self, cluster, *arguments, folder=HERE, driver=0, **variables):
        self.cluster = cluster
        command = [*cluster.inside(driver), sys.executable, "-m", "gradtide", "run", "--engine", "ray"]
        self.process = subprocess.Popen(
            [*command, "--address", cluster.address, *map(str, arguments)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **QUIET, **variables},
        )
        self.lines = []
        self._coming = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._coming.put(line.rstrip("\n"))
        self._coming.put(None)

    def wait_for(self, pattern, times=1):
        """Until so many lines match; the last."""
        found = None
        deadline_s = time.monotonic() + LINES_S
        while times:
            try:
                line = self._coming.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{pattern} was not there within {LINES_S:g} s:\n{self.text}") from None
            assert line is not None, "it ended before: \n" + "\n".join(self.lines)
            self.lines.append(line)
            if re.search(pattern, line):
                found, times = line, times - 1
        return found

    def nodes(self):
        """The numbers of the cluster's nodes on which the job has workers, as it says at its start."""
        return [int(address.rpartition(".")[2]) - 1 for address in ADDRESSES.findall(self.wait_for(r"^gradtide: job "))]

    def end(self, timeout_s=LINES_S):
        """The exit code, once it has ended."""
        code = self.process.wait(timeout_s)
        self._reader.join()
        while (line := self._coming.get()) is not None:
            self.lines.append(line)
        self.process.stdout.close()
        return code

    def send(self, number=signal.SIGINT):
        self.process.send_signal(number)

    @property
    def text(self):
        return "\n".join(self.lines)


def command_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
    return "" if "site-packages/ray/" in command else command


def nothing_left(cluster):
    commands = [command_of(pid) for name in cluster.names for pid in pids_in(name)]
    return not any("gradtide" in command or command.startswith("ray::AgentActor") for command in commands)


def once_forgotten(start):
    """The run that `start` starts. As long as Ray believes in a node that was killed, that says so:
    then another one is started."""
    deadline_s = time.monotonic() + FORGETS_S
    while True:
        run = start()
        line = run.wait_for(r"^gradtide: ")
        if " of the Ray cluster can't be reached from here" not in line:
            return run
        assert run.end() == 2, run.text
        assert time.monotonic() < deadline_s
