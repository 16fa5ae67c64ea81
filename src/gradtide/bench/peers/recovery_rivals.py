"""The others of `bench recovery`, each in processes of its own that have its folder among their arguments.

That is how all of them are found and ended, whatever has become of whoever started them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from gradtide.bench.peers.recovery_ranks import RANKS
from gradtide.errors import PeerTimeout
from gradtide.processes.ready import can_read

__all__ = ["CALM_S", "HUNG_S", "RayActor", "ReconfiguredGroup", "Torchft", "Torchrun", "end_all", "processes_of"]

HUNG_S = 30.0  # whoever is not back by then counts as hung
CALM_S = 1.0  # of steps before each kill
_END_S = 10.0
_START_S = 60.0


def processes_of(folder: Path) -> list[int]:
    """Every process that has this folder among its arguments."""
    others = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
    return [pid for pid in others if str(folder) in _arguments(pid)]


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def end_all(folder: Path, processes: Collection[subprocess.Popen[str]]) -> None:
    """Asks those whom we started, then kills whoever is left of them and of what they started."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + _END_S
    while time.monotonic() < deadline_s and any(process.poll() is None for process in processes):
        time.sleep(0.02)
    deadline_s = time.monotonic() + _END_S
    while (left := processes_of(folder)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.poll()
        time.sleep(0.02)
    for process in processes:
        with process:
            pass


class _Steps:
    """A file to which every step is written as a line: rank, process, time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "steps"

    def rows(self) -> list[tuple[int, int, float]]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 8192))
            lines = file.read().decode().split("\n")[1:-1]
        rows = [line.split() for line in lines]
        return [(int(row[0]), int(row[1]), float(row[2])) for row in rows if len(row) == 3]

    def process_of(self, rank: int) -> int | None:
        return next((process for number, process, _ in reversed(self.rows()) if number == rank), None)

    def wait_for(self, after_s: float, within_s: float, without: set[int], rank: int | None = None) -> float | None:
        """The first step after a time, by a process that is not among these."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            rows = [row for row in self.rows() if row[2] > after_s and row[1] not in without]
            found = [at_s for number, _, at_s in rows if rank is None or number == rank]
            if found:
                return min(found)
            time.sleep(0.005)
        return None


class Torchrun:
    """Two ranks; when one dies, both are started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps = _Steps(folder)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Torchrun":
        self.folder.mkdir()
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def _start(self) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--max-restarts", "1000", "--monitor-interval", "0.1",
            "-m", "gradtide.bench.peers.recovery_ranks", str(self._steps.path), str(self.folder / "checkpoint"),
        ]  # fmt: skip
        begun_s, quiet = time.monotonic(), subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, text=True)
        if self._steps.wait_for(begun_s, _START_S, set()) is None:
            raise PeerTimeout(f"torchrun made no step within {_START_S:g} s")

    def end(self) -> None:
        """Also when it hangs: its ranks have sessions of their own, and outlive it."""
        end_all(self.folder, [self._process] if self._process is not None else [])

    def kill(self) -> float:
        self._steps.wait_for(time.monotonic() + CALM_S, HUNG_S, set())
        victim, old = self._steps.process_of(1), {process for _, process, _ in self._steps.rows()}
        assert victim is not None
        begun_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        step_s = self._steps.wait_for(begun_s, HUNG_S, old)
        if step_s is None:
            self.end()
            self._start()
            return HUNG_S
        return step_s - begun_s


class ReconfiguredGroup:
    """Three ranks in a process group of torch's whose members change in place; new ones for each kill."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder, self._backend, self._kills = folder, backend, 0

    def __enter__(self) -> "ReconfiguredGroup":
        self.folder.mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        end_all(self.folder, [])

    def kill(self) -> float:
        self._kills += 1
        folder = self.folder / str(self._kills)
        folder.mkdir()
        steps, begun_s, quiet = _Steps(folder), time.monotonic(), subprocess.DEVNULL
        where = str(steps.path), str(folder)
        command = [sys.executable, "-m", "gradtide.bench.peers.recovery_ranks", *where, self._backend]
        ranks = [subprocess.Popen([*command, str(r)], stdout=quiet, stderr=quiet, text=True) for r in range(RANKS)]
        try:
            if steps.wait_for(begun_s, _START_S, set()) is None:
                raise PeerTimeout(f"the ranks of {self._backend} made no step within {_START_S:g} s")
            steps.wait_for(time.monotonic() + CALM_S, HUNG_S, set())
            begun_s = time.monotonic()
            ranks[-1].kill()
            step_s = steps.wait_for(begun_s, HUNG_S, set(), 10)
            return HUNG_S if step_s is None else step_s - begun_s
        finally:
            end_all(folder, ranks)


class Torchft:
    """Two replicas of one rank each, and a lighthouse; when one dies, the other goes on, and it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps = _Steps(folder)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._address = ""
        self._kills = 0

    def __enter__(self) -> "Torchft":
        self.folder.mkdir()
        try:
            self._address = _line_of(self._begin("lighthouse"), "torchft's lighthouse")
            self._begin("0")
            self._begin("1")
            self._wait_for_both()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        end_all(self.folder, list(self._processes.values()))

    def _begin(self, what: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "gradtide.bench.peers.recovery_torchft"]
        command, quiet = [*program, str(self._steps.path), what, self._address], subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True)
        self._processes[what] = process
        return process

    def _wait_for_both(self) -> None:
        for rank in (0, 1):
            if self._steps.wait_for(time.monotonic(), _START_S, set(), rank) is None:
                raise PeerTimeout(f"replica {rank} of torchft made no step within {_START_S:g} s")

    def kill(self) -> float:
        self._wait_for_both()
        self._steps.wait_for(time.monotonic() + CALM_S, HUNG_S, set())
        rank = str(self._kills % 2)
        self._kills += 1
        victim = self._processes[rank]
        begun_s = time.monotonic()
        victim.kill()
        with victim:
            pass
        step_s = self._steps.wait_for(begun_s, HUNG_S, {victim.pid})
        self._begin(rank)
        self._wait_for_both()
        return HUNG_S if step_s is None else step_s - begun_s


class RayActor:
    """An actor that keeps a checkpoint, with a driver that asks it for one step after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "RayActor":
        self.folder.mkdir()
        command, pipe = [sys.executable, "-m", "gradtide.bench.peers.recovery_ray", str(self.folder)], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        try:
            _line_of(self._process, "Ray")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        end_all(self.folder, [self._process] if self._process is not None else [])

    def kill(self) -> float:
        assert self._process is not None
        assert self._process.stdin is not None
        print("kill", file=self._process.stdin, flush=True)
        return float(_line_of(self._process, "the Ray actor"))


def _line_of(process: subprocess.Popen[str], who: str) -> str:
    assert process.stdout is not None
    readable = can_read([process.stdout], _START_S + HUNG_S)
    line = process.stdout.readline().strip() if readable else ""
    if not line:
        raise PeerTimeout(f"{who} said nothing within {_START_S + HUNG_S:g} s, or ended")
    return line
