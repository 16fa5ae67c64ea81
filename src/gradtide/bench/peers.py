"""Processes that wait for a command and time themselves, so that peers can take turns within one run.

Each peer says `ready`, then answers every line `run N` with the seconds that N repetitions took. It ends when its
standard input does, so it never outlives the benchmark.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from gradtide.errors import GradtideError

__all__ = ["Peer", "PeerFailed", "interleave", "repeating", "serve"]

READY_S = 120.0
ROUND_S = 600.0


class PeerFailed(GradtideError):
    """A process of the benchmark ended or did not answer."""


class Peer:
    """One contender: one process, or several that work together."""

    def __init__(
        self, name: str, commands: Sequence[Sequence[str]], inside: Sequence[Sequence[str]] | None = None
    ) -> None:
        """`commands` are arguments for Python; `inside` has what comes before it, for each process."""
        self.name, self._ready = name, False
        self._processes = [
            subprocess.Popen(
                [*before, sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                close_fds=True,
            )
            for before, command in zip(inside or [()] * len(commands), commands, strict=True)
        ]

    def wait_until_ready(self) -> None:
        if self._ready:
            return
        for process in self._processes:
            answer = self._read_line(process, READY_S)
            if answer != "ready":
                raise PeerFailed(f"{self.name} said {answer!r} instead of ready")
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
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise PeerFailed(f"{self.name} did not answer within {timeout_s:.0f} s")
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                raise PeerFailed(f"{self.name} ended with exit code {process.wait(10)}; its messages are above")
            line += piece
        return line.decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    peers: Sequence[Peer], rounds: int, repetitions: Callable[[str], int], tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds per repetition of each peer in each round. Every round runs every peer once, so that noise hits all."""
    for peer in peers:
        peer.wait_until_ready()
        peer.run(max(1, repetitions(peer.name) // 4))  # warm up
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for number in range(rounds):
        for peer in peers if number % 2 == 0 else reversed(peers):
            tell(f"round {number + 1} of {rounds}: {peer.name}")
            count = repetitions(peer.name)
            seconds[peer.name].append(peer.run(count) / count)
    return seconds


def repeating(step: Callable[[], object]) -> Callable[[int], object]:
    """A `repeat` for serve that does one step after the other."""

    def repeat(repetitions: int) -> None:
        for _ in range(repetitions):
            step()

    return repeat


def serve(repeat: Callable[[int], object], together: Callable[[], object] = lambda: None) -> None:
    """The peer's side: repeat(n) does its work n times; `together` lets processes start at one moment."""
    print("ready", flush=True)
    for line in sys.stdin:
        repetitions = int(line.split()[1])
        together()
        started = time.perf_counter()
        repeat(repetitions)
        print(time.perf_counter() - started, flush=True)
