"""Op and Schedule: who sends which chunk to whom, in which order, as plain data."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Collective", "Kind", "Op", "Schedule"]

Kind = Literal["copy", "reduce"]
Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]


class Op(NamedTuple):
    """Rank `src` sends its `chunk` to rank `dst`, which overwrites its own (copy) or adds to it (reduce).

    It may start once every op in `deps` has ended. A reduce computes dst = dst + src, rounding once.
    """

    id: int
    src: int
    dst: int
    chunk: int
    kind: Kind
    deps: tuple[int, ...] = ()
    channel: int = 0  # ops of one channel share a lane: one ring, one tree


@dataclass(frozen=True, slots=True)
class Schedule:
    """One ordered tuple of ops. Its order fixes the order of every floating-point sum.

    The first `contributors` ranks hold an input and want the output; ranks after them (a host, a server) only help.
    Chunk i is weights[i] / sum(weights) of the buffer, in order. owners[i] is the rank that starts with chunk i
    (all_gather, broadcast) or ends with it (reduce_scatter, reduce); all_reduce has no owners.
    """

    name: str
    collective: Collective
    ranks: tuple[str, ...]  # the topology's node that each rank runs on
    contributors: int
    weights: tuple[int, ...]
    ops: tuple[Op, ...]
    owners: tuple[int, ...] = ()
