"""push_pull of the store against a bare pair of sockets, copy_, Redis and a Ray actor, interleaved in one run."""

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gradtide.bench.contender import Contender, interleave
from gradtide.errors import ConfigError

if TYPE_CHECKING:
    from gradtide.store.local.servers import Forks, LocalServers

__all__ = ["Curve", "StoreCase", "StoreResult", "bench_store", "curve"]


@dataclass(frozen=True, slots=True)
class StoreCase:
    """What is measured: every worker does push_pull of so many bytes, to so many servers."""

    size_bytes: int
    workers: int = 1
    servers: int = 1
    placement: str = "any"
    replicas: int = 0  # of a further contender: gradtide with as many servers, and replicas
    idle: int = 0  # of a further contender: so many sockets to each server that say nothing
    tls: bool = False  # two further contenders: gradtide over TCP, without TLS and with it


@dataclass(frozen=True, slots=True)
class StoreResult:
    """One contender in one case."""

    case: StoreCase
    name: str
    seconds: float  # median over the rounds, of one push_pull
    seconds_min: float
    seconds_max: float
    to_bare: float  # seconds as a multiple of the bare pair's

    @property
    def bytes_per_s(self) -> float:
        """Of all workers together, both ways."""
        return 2 * self.case.size_bytes * self.case.workers / self.seconds


def bench_store(case: StoreCase, rounds: int, steps: int, tell: Callable[[str], None]) -> list[StoreResult]:
    """Every contender that is installed, in turn, `rounds` times."""
    if case.size_bytes < 4 or case.workers < 1 or case.servers < 1 or rounds < 1 or steps < 1:
        raise ConfigError("sizes, workers, servers, rounds and steps must all be positive, and a size at least 4 bytes")
    if case.idle < 0:
        raise ConfigError(f"there can't be {case.idle} idle sockets; ask for 0 or more, as in --idle 1000")
    if case.placement not in ("any", "apart", "together"):
        raise ConfigError(f"unknown placement {case.placement!r}; choose any, apart or together")
    from gradtide.store.local.servers import Forks

    with ExitStack() as stack:
        forks = stack.enter_context(Forks())
        servers = stack.enter_context(_placed_servers(case, 0, forks))
        contenders = _contenders(case, servers.address, stack)
        if case.replicas:
            safe = stack.enter_context(_placed_servers(case, case.replicas, forks))
            contenders.append((f"gradtide, replicas={case.replicas}", "gradtide", safe.address))
        for tls in (False, True) if case.tls else ():
            contenders.append((f"gradtide, TCP{' with TLS' if tls else ''}", "gradtide", _tcp(case, tls, forks, stack)))
        peers = [stack.enter_context(Contender(name, _commands(kind, case, where))) for name, kind, where in contenders]
        if case.idle:
            paths = [f"{servers.folder}/server-{i}" for i in range(case.servers)]
            commands = _commands("gradtide", case, servers.address)
            crowded = _Crowded(f"gradtide, {case.idle:,} idle sockets", commands, paths, case.idle)
            peers.append(stack.enter_context(crowded))
        found = interleave(peers, rounds, lambda name: steps, tell)
    bare = median(found["bare pair"])
    return [StoreResult(case, name, median(s), min(s), max(s), median(s) / bare) for name, s in found.items()]


class _Crowded(Contender):
    """A contender whose servers have many sockets besides that connect and say nothing."""

    def __init__(self, name: str, commands: list[list[str]], paths: list[str], idle: int) -> None:
        super().__init__(name, commands)
        self._paths, self._idle = paths, idle

    def run(self, repetitions: int) -> float:
        with ExitStack() as open_now:
            for path in self._paths * self._idle:
                open_now.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
            super().run(max(1, repetitions // 10))  # until all have been accepted
            return super().run(repetitions)


def _contenders(case: StoreCase, address: str, stack: ExitStack) -> list[tuple[str, str, str]]:
    chosen = [("bare pair", "bare", "-"), ("torch copy_", "copy", "-"), ("gradtide", "gradtide", address)]
    if case.workers == 1 and case.servers == 1:
        if _is_installed("redis") and shutil.which("redis-server"):
            chosen.append(("Redis", "redis", stack.enter_context(_redis_server())))
        if _is_installed("ray"):
            chosen.append(("Ray actor", "ray", "-"))
    return chosen


def _is_installed(package: str) -> bool:
    """A folder of that name in the current one (Ray leaves one in /tmp) is no package."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _commands(kind: str, case: StoreCase, address: str) -> list[list[str]]:
    arguments = [kind, str(case.size_bytes), case.placement]
    return [["-m", "gradtide.bench.peers.store", *arguments, str(rank), address] for rank in range(case.workers)]


@contextmanager
def _placed_servers(case: StoreCase, replicas: int, forks: "Forks") -> "Iterator[LocalServers]":
    from gradtide.store.local.servers import local_servers

    with local_servers(case.servers, replicas=replicas, forks=forks) as servers:
        _place(case, [process.pid for process in servers.processes])
        yield servers


def _tcp(case: StoreCase, tls: bool, forks: "Forks", stack: ExitStack) -> str:
    """The address of a store over TCP, with its secret file."""
    from gradtide.bench.tcp_store import tcp_store

    servers = stack.enter_context(tcp_store(case.servers, tls, forks))
    _place(case, servers.pids)
    return f"{servers.address},{servers.secret_file}"


def _place(case: StoreCase, pids: Iterable[int]) -> None:
    processors = sorted(os.sched_getaffinity(0))
    if case.placement != "any":
        for pid in pids:
            os.sched_setaffinity(pid, {processors[1 % len(processors) if case.placement == "apart" else 0]})


@contextmanager
def _redis_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gradtide-redis-") as folder:
        path = Path(folder) / "socket"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline_s = time.monotonic() + 10
            while not path.exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            yield str(path)
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True, slots=True)
class Curve:
    """m workers and n servers: what was measured where this machine can, beside what the model of a cluster says."""

    workers: int
    servers: int
    measured_s: float
    simulated_s: float


def curve(size_bytes: int, rounds: int, steps: int, tell: Callable[[str], None]) -> list[Curve]:
    """The time of a push_pull over m/n. The model's ports are as fast as the bare pair, which is measured first."""
    from gradtide.schedule.predict.servers_model import ServerCluster, push_pull_seconds

    points = []
    port_bytes_per_s = 0.0
    for workers, servers in ((1, 1), (2, 1), (2, 2), (4, 2)):
        results = {r.name: r for r in bench_store(StoreCase(size_bytes, workers, servers), rounds, steps, tell)}
        if not port_bytes_per_s:
            port_bytes_per_s = size_bytes / (results["bare pair"].seconds / 2)
        cluster = ServerCluster([port_bytes_per_s] * workers, servers, port_bytes_per_s)
        simulated_s = push_pull_seconds(cluster, size_bytes).seconds
        points.append(Curve(workers, servers, results["gradtide"].seconds, simulated_s))
    return points
