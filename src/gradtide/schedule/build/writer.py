"""From trees to a schedule: every strategy is a reduce tree and a broadcast tree per part of the buffer.

A ring is a chain per part, sharding a star per part, halving and doubling a binomial tree per part. So a builder
says only which trees; this file writes the ops and derives their deps.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gradtide.schedule.model import Kind, Op, Schedule
from gradtide.schedule.request import Request

__all__ = ["Rounds", "TreePart", "Writer", "assemble", "part_roots"]

Rounds = tuple[tuple[tuple[int, int], ...], ...]  # per round, the (source, target) ranks that move the part


class TreePart(NamedTuple):
    """A part of the buffer: reduced along `up` into `root`, then copied along `down` from it."""

    weight: int
    root: int
    up: Rounds = ()
    down: Rounds = ()
    channel: int = 0


class Writer:
    """Adds ops one by one; each waits for whoever last wrote what it reads and last touched what it writes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._writer: dict[tuple[int, int], int] = {}
        self._readers: dict[tuple[int, int], list[int]] = defaultdict(list)

    def send(self, src: int, dst: int, chunk: int, kind: Kind, channel: int = 0, after: tuple[int, ...] = ()) -> None:
        source, target = (src, chunk), (dst, chunk)
        deps = {*after, *self._readers[target]}
        if target in self._writer and not self._readers[target]:  # readers of it waited for its writer already
            deps.add(self._writer[target])
        if source in self._writer:
            deps.add(self._writer[source])
        op_id = len(self.ops)
        self.ops.append(Op(op_id, src, dst, chunk, kind, tuple(sorted(deps)), channel))
        self._readers[source].append(op_id)
        self._readers[target] = []
        self._writer[target] = op_id


def part_roots(request: Request, aggregator: int = 0) -> list[int]:
    """The ranks that some part must be rooted at: each owner, or the root, or for all_reduce one of choice."""
    if request.collective in ("reduce_scatter", "all_gather"):
        return list(range(len(request.devices)))
    return [aggregator if request.collective == "all_reduce" else request.root]


def assemble(request: Request, name: str, parts: Iterable[TreePart], helpers: Sequence[str] = ()) -> Schedule:
    """The schedule that moves each part along its trees, round by round, all parts side by side."""
    ordered = sorted(parts, key=lambda part: part.root) if _owned(request) else list(parts)
    writer = Writer()
    if request.collective in ("all_reduce", "reduce_scatter", "reduce"):
        _write_up(writer, ordered, len(request.devices))
    if request.collective in ("all_reduce", "all_gather", "broadcast"):
        _write_down(writer, ordered)
    return Schedule(
        name=name,
        collective=request.collective,
        ranks=(*request.devices, *helpers),
        contributors=len(request.devices),
        weights=tuple(part.weight for part in ordered),
        ops=tuple(writer.ops),
        owners=() if request.collective == "all_reduce" else tuple(part.root for part in ordered),
    )


def _owned(request: Request) -> bool:
    """Whether every rank owns its own part of the buffer: then those parts must lie in the order of the ranks."""
    return request.collective in ("reduce_scatter", "all_gather")


def _write_up(writer: Writer, parts: Sequence[TreePart], contributors: int) -> None:
    filled: set[tuple[int, int]] = set()
    for step in range(max((len(part.up) for part in parts), default=0)):
        for chunk, part in enumerate(parts):
            for src, dst in part.up[step] if step < len(part.up) else ():
                first = dst >= contributors and (dst, chunk) not in filled  # a helper holds nothing to add to
                filled.add((dst, chunk))
                writer.send(src, dst, chunk, "copy" if first else "reduce", part.channel)


def _write_down(writer: Writer, parts: Sequence[TreePart]) -> None:
    for step in range(max((len(part.down) for part in parts), default=0)):
        for chunk, part in enumerate(parts):
            for src, dst in part.down[step] if step < len(part.down) else ():
                writer.send(src, dst, chunk, "copy", part.channel)
