"""How much a checkpoint slows its workers, and how fast it is beside the disk alone, in one run.

A worker pushes to a store of so many bytes and pulls, step after step, in rounds. In each round of the benchmark the
disk is measured alone first (one file of the same bytes, written and synced: through the page cache, as most programs
write, and past it, as a checkpoint does), then some steps are timed, then as many while a checkpoint is taken as it
takes.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gradtide.checkpoint.direct import write_file
from gradtide.store import connect, local_servers, update

__all__ = ["Figures", "bench_checkpoint"]

_KEYS = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round of the benchmark."""

    size_bytes: int
    cached_s: float  # the disk alone, through the page cache
    direct_s: float  # past it
    checkpoint_s: float  # from the cut to the manifest
    step_s: float  # of a step without a checkpoint
    step_meanwhile_s: float  # of a step while one is taken
    longest_s: float  # of these, the longest

    @property
    def of_cached(self) -> float:
        """The checkpoint's rate as a share of the disk's through the page cache."""
        return self.cached_s / self.checkpoint_s

    @property
    def of_direct(self) -> float:
        """… and past it."""
        return self.direct_s / self.checkpoint_s

    @property
    def slower(self) -> float:
        """How much longer a step takes meanwhile, as a share."""
        return self.step_meanwhile_s / self.step_s - 1


def bench_checkpoint(
    size_bytes: int, servers: int, rounds: int, steps: int, folder: Path | None, tell: Callable[[str], None]
) -> list[Figures]:
    """Every round anew: the disk alone, steps alone, steps while a checkpoint is taken."""
    elements = size_bytes // 4 // _KEYS
    where = Path(tempfile.mkdtemp(prefix="gradtide-bench-", dir=folder))
    values = {f"w{i}": torch.randn(elements) for i in range(_KEYS)}
    found = []
    try:
        with local_servers(servers) as started, connect(started.address, 0, workers=1, consistency="bsp") as store:
            tell("filling the store")
            store.init(values, update=update("add"))

            def step() -> float:
                began_s = time.perf_counter()
                store.push_pull(values, out=values)
                for value in values.values():
                    value.mul_(0.5)  # a worker computes, too, and what is added stays finite
                return time.perf_counter() - began_s

            step()
            for number in range(rounds):
                tell(f"round {number + 1} of {rounds}: the disk alone")
                disk_s = [_write_alone(where / "alone", list(values.values()), direct=d) for d in (False, True)]
                tell(f"round {number + 1} of {rounds}: steps alone")
                alone = [step() for _ in range(steps)]
                tell(f"round {number + 1} of {rounds}: steps while a checkpoint is taken")
                began_s = time.perf_counter()
                handle = store.checkpoint(where / "checkpoints", keep=1, wait=False)
                meanwhile: list[float] = []
                while not handle.done():
                    meanwhile.append(step())
                taken = handle.result()
                seconds = min(time.perf_counter() - began_s, _age_s(taken.address, began_s))
                more = taken.manifest.size_bytes / (4 * elements * _KEYS)  # than the values alone: a little
                figures = Figures(
                    taken.manifest.size_bytes, disk_s[0] * more, disk_s[1] * more, seconds,
                    sum(alone) / len(alone), sum(meanwhile) / len(meanwhile), max(meanwhile),
                )  # fmt: skip
                found.append(figures)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    return found


def _age_s(address: str, began_s: float) -> float:
    """From the cut to when the manifest was there, by the file's own time: a step may have gone on beyond that."""
    return os.stat(f"{address}/manifest.json").st_mtime - (time.time() - (time.perf_counter() - began_s))


def _write_alone(path: Path, values: list[torch.Tensor], *, direct: bool) -> float:
    """Writes and syncs as many bytes as the store has, without anything else."""
    views = [memoryview(value.view(torch.uint8).numpy()) for value in values]  # type: ignore[arg-type]
    pieces = [view[start : start + (4 << 20)] for view in views for start in range(0, len(view), 4 << 20)]
    began_s = time.perf_counter()
    if direct:
        write_file(str(path), pieces)
    else:
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
            os.fsync(file.fileno())
    seconds = time.perf_counter() - began_s
    path.unlink()
    return seconds
