"""Collectives between hosts against Gloo and a bare pair of sockets: network namespaces, interleaved in one run."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from gradtide.bench.contender import Contender
from gradtide.errors import ConfigError
from gradtide.testing.hosts import ADDRESSES, INTERFACES, several_hosts

__all__ = ["CONTENDERS", "OPERATIONS", "HostsFigure", "HostsWire", "bench_between_hosts"]

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
CONTENDERS = {"Gloo": "gloo", "gradtide": "group", "gradtide, torch.distributed": "c10d", "bare pair": "bare"}
_TURN_S, _TURN_TIMES = 0.2, 2_000  # a turn takes about so long, but goes no more often than that
_PORT = 29_760


@dataclass(frozen=True, slots=True)
class HostsWire:
    """How many hosts, of one rank each, and what joins them."""

    hosts: int = 2
    rate_mbit: int = 0  # 0: as fast as this machine moves it

    @property
    def rate(self) -> str:
        return f"{self.rate_mbit}mbit" if self.rate_mbit else ""


@dataclass(frozen=True, slots=True)
class HostsFigure:
    """One contender at one operation and size, over all rounds."""

    operation: str
    size_bytes: int
    name: str
    seconds: float  # median
    seconds_min: float
    seconds_max: float


class _HostRanks(Contender):
    """A rank on each host that holds all contenders; `run N` goes on with which of them, and what."""

    def turn(self, kind: str, operation: str, size_bytes: int, times: int) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"run {times} {size_bytes} {kind} {operation}\n".encode())
        return max(float(self._read_line(process, 600.0)) for process in self._processes)

    def times(self, kind: str, operation: str, size_bytes: int) -> int:
        """How often it goes in a turn, by how long it takes to warm up."""
        once_s = min(self.turn(kind, operation, size_bytes, 2) / 2 for _ in range(2))
        return int(max(1, min(_TURN_TIMES, _TURN_S / once_s)))


def bench_between_hosts(
    wire: HostsWire, operations: Sequence[str], sizes: Sequence[int], rounds: int, tell: Callable[[str], None]
) -> list[HostsFigure]:
    """Seconds of one operation on tensors of these sizes (the larger of input and output), one rank a host."""
    unknown = [operation for operation in operations if operation not in OPERATIONS]
    if unknown or not operations:
        raise ConfigError(f"no operation is called {unknown or 'so'}; there are {', '.join(OPERATIONS)}")
    if not 2 <= wire.hosts <= len(ADDRESSES) or rounds < 1 or not sizes or min(sizes) < 4 * wire.hosts:
        raise ConfigError(f"2 to {len(ADDRESSES)} hosts, 1 round or more, and 4 bytes or more for each host are needed")
    kinds = {name: kind for name, kind in CONTENDERS.items() if kind != "bare" or wire.hosts == 2}
    figures = []
    with ExitStack() as stack:
        ranks = stack.enter_context(_start(wire, stack.enter_context(several_hosts(wire.hosts, wire.rate))))
        ranks.wait_until_ready()
        for operation in operations:
            for size_bytes in sizes:
                taken = _measure(ranks, kinds, operation, size_bytes, rounds, tell)
                figures += [
                    HostsFigure(operation, size_bytes, name, median(s), min(s), max(s)) for name, s in taken.items()
                ]
    return figures


def _measure(
    ranks: _HostRanks, kinds: dict[str, str], operation: str, size_bytes: int, rounds: int, tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Every round gives each contender a turn, in the other order each time."""
    times = {name: ranks.times(kind, operation, size_bytes) for name, kind in kinds.items()}
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name in kinds if number % 2 == 0 else reversed(kinds):
            tell(f"{operation}, {size_bytes} bytes, round {number + 1} of {rounds}: {name}")
            seconds = ranks.turn(kinds[name], operation, size_bytes, times[name])
            taken[name].append(seconds / times[name])
    return taken


def _start(wire: HostsWire, inside: Sequence[Sequence[str]]) -> _HostRanks:
    command = ["-m", "gradtide.bench.peers.between_hosts"]
    before = [[*host, "env", *_environment(rank, wire.hosts)] for rank, host in enumerate(inside)]
    return _HostRanks("ranks", [command] * wire.hosts, before)


def _environment(rank: int, size: int) -> list[str]:
    return [
        f"RANK={rank}",
        f"WORLD_SIZE={size}",
        f"MASTER_ADDR={ADDRESSES[0]}",
        f"MASTER_PORT={_PORT}",
        f"GLOO_SOCKET_IFNAME={INTERFACES[rank]}",
    ]
