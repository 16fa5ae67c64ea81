"""All-reduce against Gloo and MPI, interleaved in one run: each takes its turn at every size in every round."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gradtide.bench.contender import Contender
from gradtide.errors import ConfigError

__all__ = ["OURS", "SIZES", "AllreduceFigure", "Mpi", "bench_allreduce", "find_mpi"]

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 160 << 20)
OURS = ("gradtide, shared tensor", "gradtide, ordinary tensor", "gradtide, torch.distributed")
_IN_TORCH = {OURS[0]: "shared", OURS[1]: "ordinary", OURS[2]: "c10d", "Gloo": "gloo"}
_TURN_S, _TURN_TIMES = 0.25, 20_000  # a turn takes about so long, but goes no more often than that
_PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class AllreduceFigure:
    """One contender at one size, over all rounds."""

    size_bytes: int
    name: str
    seconds: float  # median
    seconds_min: float
    seconds_max: float
    ratio: float  # of the fastest peer's median to this one: above 1 is faster than every peer


@dataclass(frozen=True, slots=True)
class Mpi:
    """A Python that has mpi4py, and what starts its ranks."""

    name: str
    python: str
    mpiexec: str


class _Contenders(Contender):
    """Processes that hold one or more contenders; `run N` goes on with a size and which of them."""

    def turn(self, kind: str, size_bytes: int, times: int) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"run {times} {size_bytes} {kind}\n".encode())
        return max(float(self._read_line(process, 600.0)) for process in self._processes)


def find_mpi(pythons: Sequence[str] = ()) -> list[Mpi]:
    """The MPIs of these Pythons, or of this one, by the name that their library gives itself."""
    found = []
    for python in pythons or (sys.executable,):
        beside = Path(python).with_name("mpiexec")
        mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
        program = "from mpi4py import MPI; print(MPI.Get_library_version())"
        try:
            asked = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        except OSError as error:
            raise ConfigError(f"--mpi-python {python} can't be run ({error.strerror}); name a Python") from None
        if asked.returncode == 0 and mpiexec:
            found.append(Mpi(_called(asked.stdout), python, mpiexec))
        elif pythons:
            raise ConfigError(f"{python} has no mpi4py or no mpiexec; install mpi4py and openmpi or mpich for it")
    return found


def _called(version: str) -> str:
    """ "Open MPI 5.0.11" or "MPICH 5.0.2" from the long text that the library says of itself."""
    number = re.search(r"\d+(\.\d+)+", version)
    return f"{'Open MPI' if 'Open MPI' in version else 'MPICH'} {number[0] if number else ''}".strip()


def bench_allreduce(
    ranks: int, sizes: Sequence[int], rounds: int, mpis: Sequence[Mpi], tell: Callable[[str], None]
) -> list[AllreduceFigure]:
    """Seconds of one all-reduce (sum of float32) between `ranks` processes of this host."""
    if ranks < 2 or rounds < 1 or not sizes or min(sizes) < 4:
        raise ConfigError("an all-reduce needs 2 ranks or more, 1 round or more, and sizes of 4 bytes or more")
    seconds: dict[tuple[int, str], list[float]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-"))
        contenders = _start(stack, ranks, folder, mpis)
        for size_bytes in sizes:
            times = {name: _times(*contender, size_bytes) for name, contender in contenders.items()}
            for number in range(1, rounds + 1):
                for name, (processes, kind) in contenders.items():
                    tell(f"{size_bytes} bytes, round {number} of {rounds}: {name}")
                    taken = processes.turn(kind, size_bytes, times[name]) / times[name]
                    seconds.setdefault((size_bytes, name), []).append(taken)
    return _figures(seconds)


def _start(stack: ExitStack, ranks: int, folder: str, mpis: Sequence[Mpi]) -> dict[str, tuple[_Contenders, str]]:
    ours = [["-m", "gradtide.bench.peers.allreduce", str(rank), str(ranks), folder] for rank in range(ranks)]
    torch_ones = stack.enter_context(_Contenders("torch", ours))
    contenders = {name: (torch_ones, kind) for name, kind in _IN_TORCH.items()}
    for mpi in mpis:
        arguments = [mpi.mpiexec, str(ranks), mpi.python, str(_PEERS / "allreduce_mpi.py")]
        command = ["-m", "gradtide.bench.peers.mpi_launch", *arguments]
        contenders[mpi.name] = (stack.enter_context(_Contenders(mpi.name, [command])), "mpi")
    for processes in dict.fromkeys(processes for processes, _ in contenders.values()):
        processes.wait_until_ready()
    return contenders


def _times(processes: _Contenders, kind: str, size_bytes: int) -> int:
    """How often a contender goes in a turn, by how long it takes to warm up."""
    once_s = min(processes.turn(kind, size_bytes, 3) / 3 for _ in range(2))
    return int(max(3, min(_TURN_TIMES, _TURN_S / once_s)))


def _figures(seconds: dict[tuple[int, str], list[float]]) -> list[AllreduceFigure]:
    figures = []
    for (size_bytes, name), taken in seconds.items():
        peers = [median(t) for (size, other), t in seconds.items() if size == size_bytes and other not in OURS]
        figures.append(
            AllreduceFigure(size_bytes, name, median(taken), min(taken), max(taken), min(peers) / median(taken))
        )
    return figures
