"""Measures this machine's links: fresh processes with a UNIX socket between each two, one pair at a time."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path

from gradtide.errors import TopologyError
from gradtide.topology.model import Topology
from gradtide.topology.probe.fit import Fit, build_topology, fit_link, measure_link

__all__ = ["MOST_PROCESSES", "ProbeCrew", "probe_machine"]

MOST_PROCESSES = 16
CHILD = Path(__file__).with_name("child.py")
STARTING_S = 20.0  # the longest that starting the interpreters may take


def probe_machine(processes: int = 2, budget_s: float = 4.0, wait_s: float = 30.0) -> Topology:
    """The links between so many processes of this machine, each pair each way.

    Transfers take about `budget_s` together; no wait for a process is longer than `wait_s`.
    """
    return build_topology("probe", dict.fromkeys(_names(processes), "host0"), probe_fits(processes, budget_s, wait_s))


def probe_fits(processes: int, budget_s: float, wait_s: float) -> dict[tuple[str, str], Fit]:
    """What was fitted for each ordered pair."""
    names = _names(processes)
    pairs = list(permutations(range(processes), 2))
    with ProbeCrew(processes, wait_s) as crew:
        return {(names[a], names[b]): _fit(crew, a, b, budget_s / len(pairs)) for a, b in pairs}


def _names(processes: int) -> list[str]:
    if not 2 <= processes <= MOST_PROCESSES:
        raise TopologyError(f"a probe needs from 2 to {MOST_PROCESSES} processes, not {processes}")
    return [f"process{i}" for i in range(processes)]


def _fit(crew: "ProbeCrew", a: int, b: int, budget_s: float) -> Fit:
    """A transfer is timed until its one-byte answer is back; half of a one-byte ping is the answer's share."""
    crew.transfer(a, b, 1, 5)  # wakes both
    answer_s = sorted(crew.transfer(a, b, 1, 15))[7] / 2
    samples = measure_link(
        lambda size, times: [max(s - answer_s, s / 2) for s in crew.transfer(a, b, size, times)], budget_s=budget_s
    )
    return fit_link(samples)


@dataclass(frozen=True, slots=True)
class _Member:
    process: subprocess.Popen[bytes]
    orders: socket.socket


class ProbeCrew:
    """Processes that send each other bytes on demand. Leaving the block ends every one of them.

    A child that loses the socket on which it gets its orders ends by itself, so none outlives a killed parent.
    """

    def __init__(self, count: int, wait_s: float) -> None:
        self._count, self._wait_s = count, wait_s
        self._members: list[_Member] = []

    def __enter__(self) -> "ProbeCrew":
        try:
            with _wired(self._count) as ends:
                for index in range(self._count):
                    self._members.append(self._start(ends[index]))
            for index in range(self._count):
                self._answer(index, STARTING_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def transfer(self, source: int, target: int, size_bytes: int, times: int) -> list[float]:
        """Seconds from the first byte sent to the answer received, each time."""
        self._order(target, {"do": "receive", "peer": source, "size": size_bytes, "times": times})
        self._order(source, {"do": "send", "peer": target, "size": size_bytes, "times": times})
        self._answer(target, self._wait_s)
        return [float(value) for value in self._answer(source, self._wait_s)]

    def _start(self, ends: dict[int, socket.socket]) -> _Member:
        ours, theirs = socket.socketpair()
        ours.settimeout(self._wait_s)
        with theirs:
            wires = {peer: end.fileno() for peer, end in ends.items()}
            setup = json.dumps({"orders": theirs.fileno(), "peers": wires, "wait_s": self._wait_s})
            # -I: only the standard library is needed, so nothing around this process can be in the child's way.
            process = subprocess.Popen(
                [sys.executable, "-I", str(CHILD), setup],
                pass_fds=[theirs.fileno(), *wires.values()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return _Member(process, ours)

    def _order(self, index: int, order: dict[str, object]) -> None:
        try:
            self._members[index].orders.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            raise self._lost(index) from None

    def _answer(self, index: int, wait_s: float) -> list[float]:
        """One line of JSON from a child, within the deadline."""
        orders, line, until = self._members[index].orders, b"", time.monotonic() + wait_s
        while not line.endswith(b"\n"):
            orders.settimeout(max(until - time.monotonic(), 1e-3))
            try:
                part = orders.recv(65_536)
            except TimeoutError:
                raise TopologyError(
                    f"probe: process {index} gave no answer in {wait_s:g} s; is the machine busy?"
                ) from None
            except OSError:
                part = b""
            if not part:
                raise self._lost(index)
            line += part
        answer: list[float] = json.loads(line)
        return answer

    def _lost(self, index: int) -> TopologyError:
        return TopologyError(f"probe: process {index} ended while it was measured; run the probe again")

    def _end(self) -> None:
        for member in self._members:
            member.orders.close()
        for member in self._members:
            try:
                member.process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait(timeout=self._wait_s)
        self._members.clear()


@contextmanager
def _wired(count: int) -> Iterator[list[dict[int, socket.socket]]]:
    """For each process its end of a socket to each other; this process closes its copies on the way out."""
    with ExitStack() as stack:
        ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
        for a, b in combinations(range(count), 2):
            ends[a][b], ends[b][a] = (stack.enter_context(end) for end in socket.socketpair())
        yield ends
