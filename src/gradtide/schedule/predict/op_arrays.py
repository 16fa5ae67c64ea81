"""A list of ops as arrays: what the compiled simulation takes, and what many equal slices are made of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.model import Schedule

__all__ = ["OpArrays", "arrays_of", "by_key"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OpArrays:
    """The ops of a schedule, in its order."""

    ranks: tuple[str, ...]
    src: Ints
    dst: Ints
    chunk: Ints
    channel: Ints
    dep_counts: Ints
    deps: Ints  # places in the list, those of one op after the other

    def __len__(self) -> int:
        return len(self.src)


def arrays_of(schedule: Schedule) -> OpArrays:
    """The ops of a schedule whose ids are unique."""
    ops, count = schedule.ops, len(schedule.ops)
    place = {op.id: at for at, op in enumerate(ops)}
    dep_counts = np.fromiter((len(op.deps) for op in ops), np.int64, count)
    return OpArrays(
        ranks=schedule.ranks,
        src=np.fromiter((op.src for op in ops), np.int64, count),
        dst=np.fromiter((op.dst for op in ops), np.int64, count),
        chunk=np.fromiter((op.chunk for op in ops), np.int64, count),
        channel=np.fromiter((op.channel for op in ops), np.int64, count),
        dep_counts=dep_counts,
        deps=np.fromiter((place[dep] for op in ops for dep in op.deps), np.int64, int(dep_counts.sum())),
    )


def by_key(keys: Ints, count: int, items: Ints | None = None) -> tuple[Ints, Ints]:
    """Items (by default their places) grouped by key 0 to count - 1: where each group begins, and all in that order."""
    order = np.argsort(keys, kind="stable")
    starts = np.searchsorted(keys[order], np.arange(count + 1)).astype(np.int64)
    return starts, order if items is None else items[order]
