"""How much a checkpoint slows its workers, and how fast it is beside the disk alone, in one run.

A worker trains a model of so many bytes on one core, step after step, in rounds: forward and backward of a small batch,
then it pushes all gradients, the servers step, and it pulls all parameters. In each round of the benchmark the disk is
measured alone first (one file of the same bytes, written and synced: through the page cache, as most programs write,
and past it, as a checkpoint does), then some steps are timed, then as many while a checkpoint is taken as it takes.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import torch

from gradtide.checkpoint.direct import write_file
from gradtide.store import connect, local_servers, update

__all__ = ["Figures", "bench_checkpoint"]

_LAYERS, _BATCH, _LR = 16, 32, 1e-4


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
    width = max(1, isqrt(size_bytes // 4 // _LAYERS))
    values = {f"w{i}": torch.randn(width, width).mul_(width**-0.5) for i in range(_LAYERS)}
    gradients = {key: torch.empty_like(value) for key, value in values.items()}
    found, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    where = Path(tempfile.mkdtemp(prefix="gradtide-bench-", dir=folder))
    try:
        with local_servers(servers) as started, connect(started.address, 0, workers=1, consistency="bsp") as store:
            tell("filling the store")
            store.init(values, update=update("sgd", lr=_LR))

            def step() -> float:
                began_s = time.perf_counter()
                _train(values, gradients)
                store.push_pull(gradients, out=values)
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
                more = taken.manifest.size_bytes / (4 * width**2 * _LAYERS)  # than the values alone: a little
                figures = Figures(
                    taken.manifest.size_bytes, disk_s[0] * more, disk_s[1] * more, seconds,
                    sum(alone) / len(alone), sum(meanwhile) / len(meanwhile), max(meanwhile),
                )  # fmt: skip
                found.append(figures)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(where, ignore_errors=True)
    return found


def _train(values: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor]) -> None:
    """Forward and backward through layers that are matrices alone."""
    layers = [(values[key], gradients[key]) for key in values]
    activations = [torch.randn(_BATCH, len(layers[0][0]))]
    for weight, _ in layers:
        activations.append((activations[-1] @ weight).relu_())
    error = activations.pop() / _BATCH
    for weight, gradient in reversed(layers):
        before = activations.pop()
        torch.mm(before.T, error, out=gradient)
        error = (error @ weight.T) * (before > 0)


def _age_s(address: str, began_s: float) -> float:
    """From the cut to when the manifest was there, by the file's own time: a step may have gone on beyond that."""
    return os.stat(f"{address}/manifest.json").st_mtime - (time.time() - (time.perf_counter() - began_s))


def _write_alone(path: Path, values: list[torch.Tensor], *, direct: bool) -> float:
    """Writes and syncs as many bytes as the store has, without anything else."""
    views = [memoryview(value.view(-1).view(torch.uint8).numpy()) for value in values]  # type: ignore[arg-type]
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
