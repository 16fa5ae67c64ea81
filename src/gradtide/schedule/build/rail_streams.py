"""Which trees between machines run side by side: streams of slices, all slices of a stream alike.

Trees of one kind on rails that are alike keep in step with each other, if their parts are equal. So they are a stream,
with a share of the buffer that makes the busiest NIC of all streams together least busy. Streams have lanes of their
own: in one queue, a slow stream's chunks keep a fast one's waiting (mixed:4+4 in 36 slices: 1.74 times the bound, 1.14
with lanes for each). Lanes for each rail help where rails differ (superpod:2 with a slow NIC: 1.18 and 1.09).
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from gradtide.schedule.build.exits import MachineExits
from gradtide.schedule.build.rail_moves import moves_of
from gradtide.schedule.build.rails import RailTree, leaf_trees, least_time, least_trees, nic_loads
from gradtide.schedule.build.writer import Writer
from gradtide.schedule.classes.sliced import SlicedSchedule
from gradtide.schedule.model import Kind, Schedule
from gradtide.schedule.request import Request

__all__ = ["RailStream", "StreamChoice", "choices_of", "sliced"]

LEAST_SHARE = 0.01  # of the buffer, for a stream to be worth its ops
TAPER = (1, 1, 2, 2, 3, 3)  # the last slices, in quarters, the very last first: the pipeline drains sooner
EXACT = 1_000_000_000  # weights are parts of about that


@dataclass(frozen=True, slots=True)
class RailStream:
    """Trees whose parts make a whole, and the stream's share of the buffer."""

    trees: tuple[RailTree, ...]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """Streams that run side by side, and whether each rail has lanes of its own."""

    streams: tuple[RailStream, ...]
    by_rail: bool

    @property
    def trees(self) -> int:
        return sum(len(stream.trees) for stream in self.streams)


def choices_of(request: Request, machines: list[MachineExits]) -> list[StreamChoice]:
    """Every choice that was the best one on some cluster; empty where no rail leads to every machine."""
    leaf, least = leaf_trees(request, machines), least_trees(request, machines)
    whole = [(RailStream(tuple(trees)),) for trees in (leaf, least) if trees]
    kinds = [*_kinds(leaf, machines), *_kinds(least, machines)]
    mixtures = dict.fromkeys([_shared(kinds, machines), _shared(_kinds(least, machines), machines)])
    found = [StreamChoice(streams, by_rail) for streams in whole for by_rail in (False, True)]
    worth = [streams for streams in mixtures if len(streams) > 1]
    return found + [StreamChoice(streams, True) for streams in dict.fromkeys([*worth, *map(_doubled, worth)])]


def _kinds(trees: list[RailTree], machines: list[MachineExits]) -> list[tuple[RailTree, ...]]:
    """The trees of rails that are alike, all with the same part."""
    rates: dict[int, list[float]] = defaultdict(list)
    for way in (way for machine in machines for way in machine.exits):
        rates[way.place].append(way.bytes_per_s)
    alike: dict[tuple[float, ...], list[RailTree]] = defaultdict(list)
    for tree in trees:
        alike[tuple(rates[tree.trunk[0].place])].append(tree)
    return [tuple(replace(tree, part=1 / len(each)) for tree in each) for each in alike.values()]


def _shared(kinds: list[tuple[RailTree, ...]], machines: list[MachineExits]) -> tuple[RailStream, ...]:
    """A stream for each kind that is worth it, with its share."""
    if not kinds:
        return ()
    loads = np.column_stack([nic_loads(list(trees), machines).mean(axis=1) for trees in kinds])
    shares = least_time(loads).x[1:].tolist()
    worth = [RailStream(trees, share) for trees, share in zip(kinds, shares, strict=True) if share > LEAST_SHARE]
    total = sum(stream.share for stream in worth)
    return tuple(RailStream(stream.trees, stream.share / total) for stream in worth)


def _doubled(streams: tuple[RailStream, ...]) -> tuple[RailStream, ...]:
    """With two streams for each that has several leaves, the other half of them heard first (mixed:4+1: 1.16, 1.07)."""
    found = []
    for stream in streams:
        half = len(stream.trees[0].leaves) // 2
        turned = tuple(replace(tree, leaves=tree.leaves[half:] + tree.leaves[:half]) for tree in stream.trees)
        both = [RailStream(trees, stream.share / 2) for trees in (stream.trees, turned)]
        found += both if half else [stream]
    return tuple(found)


def sliced(request: Request, machines: list[MachineExits], choice: StreamChoice, chunks: int) -> SlicedSchedule:
    """The streams cut into about so many chunks, all of about the same size; their slices take turns."""
    counts = [max(1, round(stream.share * chunks / len(stream.trees))) for stream in choice.streams]
    turns = sorted(((at + 0.5) / count, stream, at) for stream, count in enumerate(counts) for at in range(count))
    order = tuple((stream, _quarters(at, counts[stream])) for _, stream, at in turns)
    lanes = 2 + max(move.channel for stream in choice.streams for move in moves_of(machines, stream.trees[0], 0))
    slices, first = [], 0
    for at, stream in enumerate(choice.streams):
        quarters = sum(size for each, size in order if each == at)
        slices.append(_slice(request, machines, stream, choice.by_rail, (first, lanes), quarters))
        first = 1 + max(op.channel for op in slices[-1].ops)
    return SlicedSchedule(tuple(slices), order)


def _quarters(at: int, count: int) -> int:
    left = count - 1 - at
    return TAPER[left] if left < len(TAPER) and count >= 2 * len(TAPER) else 4


def _slice(
    request: Request,
    machines: list[MachineExits],
    stream: RailStream,
    by_rail: bool,
    channels: tuple[int, int],
    quarters: int,
) -> Schedule:
    """One slice of a stream, whose channels begin at the first, so many for each rail."""
    writer, (first, lanes) = Writer(), channels
    rows = [(move, at) for at, tree in enumerate(stream.trees) for move in moves_of(machines, tree, at)]
    for move, at in sorted(rows, key=lambda row: row[0][:2]):
        rail = stream.trees[at].trunk[0].place if by_rail else 0
        kind: Kind = "copy" if move.channel else "reduce"
        writer.send(move.source, move.target, at, kind, first + rail * lanes + move.channel)
    return Schedule(
        name="balanced-rails",
        collective="all_reduce",
        ranks=request.devices,
        contributors=len(request.devices),
        weights=tuple(max(1, round(tree.part * stream.share / quarters * EXACT)) for tree in stream.trees),
        ops=tuple(writer.ops),
    )
