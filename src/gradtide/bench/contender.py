"""Processes that wait for a command and time themselves, so that contenders can take turns within one run.

Each contender says `ready`, then answers every line `run N` with the seconds that N repetitions took. It ends when its
standard input does, so it never outlives the benchmark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from gradtide.errors import GradtideError
from gradtide.processes.ready import can_read

__all__ = ["Contender", "ContenderFailed", "interleave", "repeating", "serve"]

READY_S = 120.0
ROUND_S = 600.0


class ContenderFailed(GradtideError):
    """A process of the benchmark ended or did not answer."""


class Contender:
    """One contender: one process, or several that work together."""

    def __init__(
        self, name: str, commands: Sequence[Sequence[str]], inside: Sequence[Sequence[str]] | None = None
    ) -> None:
        """`commands` are arguments for Python; `inside` has what comes before it, for each process."""
        self.name, self._ready = name, False
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for before, command in zip(inside or [()] * len(commands), commands, strict=True):
                self._start([*before, sys.executable, *command])
        except KeyboardInterrupt:
            self.__exit__(KeyboardInterrupt)
            raise

    def _start(self, command: Sequence[str]) -> None:
        """In a session of its own: a terminal's Ctrl-C reaches us alone."""
        pipe = subprocess.PIPE
        self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True))

    def wait_until_ready(self) -> None:
        if self._ready:
            return
        for process in self._processes:
            answer = self._read_line(process, READY_S)
            if answer != "ready":
                raise ContenderFailed(f"{self.name} said {answer!r} instead of ready")
        self._ready = True

    def run(self, repetitions: int) -> float:
        """The seconds that the slowest of its processes took."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"run {repetitions}\n".encode())
        return max(float(self._read_line(process, ROUND_S)) for process in self._processes)

    def _read_line(self, process: subprocess.Popen[bytes], timeout_s: float) -> str:
        assert process.stdout is not None
        line, deadline = b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not can_read([process.stdout], deadline - time.monotonic()):
                raise ContenderFailed(f"{self.name} did not answer within {timeout_s:.0f} s")
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                raise ContenderFailed(f"{self.name} ended with exit code {process.wait(10)}; its messages are above")
            line += piece
        return line.decode().strip()

    def _kill(self) -> None:
        """All at once: one that was left would complain of the others."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGSTOP)
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is KeyboardInterrupt:  # its figures are wanted no more: don't wait
            self._kill()
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def interleave(
    contenders: Sequence[Contender], rounds: int, repetitions: Callable[[str], int], tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds per repetition of each contender in each round. Every round runs each once, so that noise hits all."""
    for contender in contenders:
        contender.wait_until_ready()
        contender.run(max(1, repetitions(contender.name) // 4))  # warm up
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            tell(f"round {number + 1} of {rounds}: {contender.name}")
            count = repetitions(contender.name)
            seconds[contender.name].append(contender.run(count) / count)
    return seconds


def repeating(step: Callable[[], object]) -> Callable[[int], object]:
    """A `repeat` for serve that does one step after the other."""

    def repeat(repetitions: int) -> None:
        for _ in range(repetitions):
            step()

    return repeat


def serve(repeat: Callable[[int], object], together: Callable[[], object] = lambda: None) -> None:
    """The contender's side: repeat(n) does its work n times; `together` lets processes start at one moment."""
    _say("ready")
    for line in sys.stdin:
        repetitions = int(line.split()[1])
        together()
        started = time.perf_counter()
        repeat(repetitions)
        _say(str(time.perf_counter() - started))


def _say(text: str) -> None:
    """When nobody listens any more, the benchmark is over, and so are we."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os._exit(0)
