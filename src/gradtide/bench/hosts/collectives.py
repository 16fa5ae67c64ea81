"""Collectives between hosts against Gloo, Open MPI and a bare pair of sockets: namespaces, interleaved in one run."""

import shlex
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gradtide.bench.allreduce import Mpi
from gradtide.bench.contender import Contender
from gradtide.errors import ConfigError
from gradtide.testing.hosts import ADDRESSES, INTERFACES, several_hosts

__all__ = ["CONTENDERS", "OPERATIONS", "PREDICTED", "HostsFigure", "HostsWire", "bench_between_hosts"]

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
CONTENDERS = {"Gloo": "gloo", "gradtide": "group", "gradtide, torch.distributed": "c10d", "bare pair": "bare"}
PREDICTED = "predicted"  # how long gradtide should take, in the figures as if it were a contender
_TURN_S, _TURN_TIMES = 0.2, 2_000  # a turn takes about so long, but goes no more often than that
_PORT = 29_760


@dataclass(frozen=True, slots=True)
class HostsWire:
    """How many hosts, and what joins them."""

    hosts: int = 2
    rate_mbit: int = 0  # 0: as fast as this machine moves it
    ranks: int = 1  # of each host

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
    to_gloo: float  # Gloo's median as a multiple of this one's: how many times as fast
    to_bare: float | None  # the same of the bare pair's, where there is one: between two hosts


class _HostRanks(Contender):
    """Ranks that hold all contenders, or MPI's; `run N` goes on with which of them, and what."""

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
    wire: HostsWire,
    operations: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    mpis: Sequence[Mpi],
    tell: Callable[[str], None],
) -> list[HostsFigure]:
    """Seconds of one operation on tensors of these sizes (the larger of input and output)."""
    unknown = [operation for operation in operations if operation not in OPERATIONS]
    if unknown or not operations:
        raise ConfigError(f"no operation is called {unknown or 'so'}; there are {', '.join(OPERATIONS)}")
    ranks = wire.hosts * wire.ranks
    if not 2 <= wire.hosts <= len(ADDRESSES) or min(wire.ranks, rounds) < 1 or not sizes or min(sizes) < 4 * ranks:
        raise ConfigError(
            f"2 to {len(ADDRESSES)} hosts, 1 rank on each and 1 round or more, and 4 bytes or more a rank are needed"
        )
    figures = []
    with ExitStack() as stack:
        contenders = _start(stack, wire, mpis)
        for operation in operations:
            for size_bytes in sizes:
                figures += _figures(operation, size_bytes, _measure(contenders, operation, size_bytes, rounds, tell))
    return figures


def _figures(operation: str, size_bytes: int, taken: dict[str, list[float]]) -> list[HostsFigure]:
    medians = {name: median(seconds) for name, seconds in taken.items()}
    return [
        HostsFigure(
            operation,
            size_bytes,
            name,
            medians[name],
            min(seconds),
            max(seconds),
            medians["Gloo"] / medians[name],
            medians["bare pair"] / medians[name] if "bare pair" in medians else None,
        )
        for name, seconds in taken.items()
    ]


def _measure(
    contenders: "_Contenders", operation: str, size_bytes: int, rounds: int, tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Every round gives each contender a turn, in the other order each time."""
    times = {name: ranks.times(kind, operation, size_bytes) for name, (ranks, kind) in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in contenders if number % 2 == 0 else reversed(contenders):
            tell(f"{operation}, {size_bytes} bytes, round {number + 1} of {rounds}: {name}")
            ranks, kind = contenders[name]
            taken[name].append(ranks.turn(kind, operation, size_bytes, times[name]) / times[name])
    return taken


_Contenders = dict[str, tuple[_HostRanks, str]]


def _start(stack: ExitStack, wire: HostsWire, mpis: Sequence[Mpi]) -> _Contenders:
    inside = stack.enter_context(several_hosts(wire.hosts, wire.rate))
    command = ["-m", "gradtide.bench.peers.between_hosts", str(wire.hosts)]
    size = wire.hosts * wire.ranks
    before = [[*inside[rank // wire.ranks], "env", *_environment(rank, wire)] for rank in range(size)]
    ours = stack.enter_context(_HostRanks("ranks", [command] * size, before))
    ours.wait_until_ready()  # before others start: it measures what it predicts from
    kinds = {name: kind for name, kind in CONTENDERS.items() if kind != "bare" or wire.hosts == 2}
    contenders = {name: (ours, kind) for name, kind in {**kinds, PREDICTED: "predicted"}.items()}
    for mpi in mpis:
        if mpi.name.startswith("Open MPI"):  # others start their ranks on other hosts in other ways
            contenders[mpi.name] = (stack.enter_context(_start_mpi(stack, wire, mpi, inside)), "mpi")
            contenders[mpi.name][0].wait_until_ready()
    return contenders


def _start_mpi(stack: ExitStack, wire: HostsWire, mpi: Mpi, inside: Sequence[Sequence[str]]) -> _HostRanks:
    """mpirun on the first host; it reaches the others by a script that enters their namespaces.

    Each host has a name of its own: MPI takes ranks of hosts of one name for neighbours that share memory.
    """
    named = [["unshare", "--uts", "sh", "-c", f'hostname {host[-1]}; exec "$@"', "sh", *host] for host in inside]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
    agent = folder / "agent"
    lines = [
        f'{address}) exec {shlex.join(host)} sh -c "$*";;' for address, host in zip(ADDRESSES, named, strict=False)
    ]
    agent.write_text("\n".join(["#!/bin/sh", 'host=$1; shift; case "$host" in', *lines, "esac", ""]))
    agent.chmod(stat.S_IRWXU)
    network = f"{ADDRESSES[0]}/24"
    over = "tcp,self" if wire.ranks == 1 else "vader,tcp,self"
    places = ",".join(f"{address}:{wire.ranks}" for address in ADDRESSES[: wire.hosts])
    settings = {"plm_rsh_agent": str(agent), "pml": "ob1", "btl": over}
    settings |= dict.fromkeys(["oob_tcp_if_include", "btl_tcp_if_include"], network)
    options = ["-host", places, *(word for name, value in settings.items() for word in ("--mca", name, value))]
    program = str(Path(__file__).parent / "peers" / "between_hosts_mpi.py")
    size = str(wire.hosts * wire.ranks)
    command = ["-m", "gradtide.bench.peers.mpi_launch", mpi.mpiexec, size, mpi.python, program, *options]
    return _HostRanks(mpi.name, [command], [named[0]])


def _environment(rank: int, wire: HostsWire) -> list[str]:
    return [
        f"RANK={rank}",
        f"WORLD_SIZE={wire.hosts * wire.ranks}",
        f"MASTER_ADDR={ADDRESSES[0]}",
        f"MASTER_PORT={_PORT}",
        f"GLOO_SOCKET_IFNAME={INTERFACES[rank // wire.ranks]}",
    ]
