"""What must leave and enter each group of nodes, and how long its links take for that at the least.

An op moves a chunk from one rank to another along a route, so if the two are in different groups, the chunk crosses a
link out of the one and a link into the other. What follows holds for every list of ops, chunk by chunk, hosts that add
up included; k groups have a device each.

all_reduce, one group: some device outside needs the group's contribution and some inside needs the others', so the
chunk leaves at least once and enters at least once.

all_reduce, all groups: take the first moment at which some rank holds the whole sum. Until then every group without
that rank has sent at least once: its contributions are in the sum. After it, each of those groups must be sent to at
least once, for it does not hold the sum yet and needs it. That is k - 1 ops that leave a group, and then k - 1 others
that enter one. So at least k - 1 ops leave groups and k - 1 enter groups; and if the hosts in no group count as one
more group, 2 (k - 1) ops go from one to another, each over a link out of the one and a link into the other.

all_gather: what others own must enter a group, what its devices own must leave it, once; in all, each chunk enters
k - 1 groups. reduce_scatter is the same backwards. broadcast and reduce are all_gather and reduce_scatter of what one
device owns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtide.schedule.cuts.partitions import REST, Ground, Partition, ground_of, partitions
from gradtide.schedule.request import Request

__all__ = ["TightCut", "cut_seconds_per_byte", "cuts", "tightest"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TightCut:
    """Seconds that each byte of the buffer takes at the least, and why."""

    seconds_per_byte: float
    reason: str
    links: tuple[int, ...]  # of the topology: what crosses


def tightest(request: Request) -> TightCut:
    """The cut that takes the longest."""
    return max(cuts(request), key=lambda cut: cut.seconds_per_byte)


def cut_seconds_per_byte(request: Request) -> float:
    return tightest(request).seconds_per_byte


def cuts(request: Request) -> Iterator[TightCut]:
    """The worst single group of each partition, and each partition as a whole."""
    ground = ground_of(request)
    yield TightCut(0.0, "", ())
    for partition in partitions(ground):
        yield from _cuts_of(ground, partition)


@dataclass(frozen=True, eq=False)
class _Sides:
    """Bytes/s out of each group, into each, and both together where they share wires; hosts in no group come last."""

    out: Floats
    into: Floats
    both: Floats


def _cuts_of(ground: Ground, partition: Partition) -> Iterator[TightCut]:
    groups, kind = partition.groups, partition.kind
    count = int(groups.max()) + 1
    places = np.where(groups == REST, np.where(ground.able, count, count + 1), groups)
    sides = _sides(ground, places, count)
    leaves, enters = _once(ground, groups, count)
    for needed, rates, verb in (
        (leaves, sides.out, "send"),
        (enters, sides.into, "receive"),
        (leaves + enters, sides.both, "send and receive"),
    ):
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.where(needed > 0, needed / rates[:count], 0.0)
        worst = int(seconds.argmax())
        yield TightCut(
            float(seconds[worst]), f"{_one(kind)} must {verb} {needed[worst]:.3g} times the buffer",
            _crossing(ground, places, worst, verb),
        )  # fmt: skip
    yield from _together(ground, partition, places, sides)


def _together(ground: Ground, partition: Partition, places: NDArray[np.intp], sides: _Sides) -> Iterator[TightCut]:
    """All groups: what they send and receive together."""
    count = len(sides.out) - 1
    crossings = (count - 1) * (2 if ground.request.collective == "all_reduce" else 1)
    for rates, verb in ((sides.out, "send"), (sides.into, "receive")):
        links = _crossing(ground, places, None, verb)
        if ground.request.collective in _FORCED[verb]:
            text = f"{_all(partition.kind, count)} must {verb} {count - 1} times the buffer in all"
            yield TightCut(_over(count - 1, rates[:count]), text, links)
        text = f"{_all(partition.kind, count)} must {verb} {crossings} times the buffer in all"
        yield TightCut(_over(crossings, rates), text, links)
    ends = places[ground.tails], places[ground.heads]
    if not ((ends[0] != ends[1]) & (np.maximum(*ends) <= count)).any():  # no link is a way out and a way in at once
        text = f"{_all(partition.kind, count)} must send and receive {2 * crossings} times the buffer in all"
        yield TightCut(_over(2 * crossings, sides.both), text, _crossing(ground, places, None, "send and receive"))


def _over(needed: int, rates: Floats) -> float:
    """Seconds; infinite where nothing leads across."""
    return needed / float(rates.sum()) if rates.any() else float("inf")


_FORCED = {  # whose ops must leave (or enter) a group with a device, hosts in no group or not
    "send": ("all_reduce", "reduce", "reduce_scatter"),
    "receive": ("all_reduce", "broadcast", "all_gather"),
}


def _once(ground: Ground, groups: NDArray[np.intp], count: int) -> tuple[Floats, Floats]:
    """How often the buffer leaves and enters each group at the least."""
    request = ground.request
    if request.collective == "all_reduce":
        return np.ones(count), np.ones(count)
    owned = np.zeros(count)
    if request.collective in ("broadcast", "reduce"):
        owned[groups[ground.asked[request.root]]] = 1.0
    else:
        np.add.at(owned, groups[ground.asked], 1.0 / len(ground.asked))
    spreads = request.collective in ("broadcast", "all_gather")
    return (owned, 1.0 - owned) if spreads else (1.0 - owned, owned)


def _sides(ground: Ground, places: NDArray[np.intp], count: int) -> _Sides:
    tails, heads = places[ground.tails], places[ground.heads]
    crosses = np.flatnonzero(tails != heads)
    out = _summed(ground, [(tails[crosses], crosses)], count)
    into = _summed(ground, [(heads[crosses], crosses)], count)
    both = _summed(ground, [(tails[crosses], crosses), (heads[crosses], crosses)], count)
    return _Sides(out, into, both)


def _summed(ground: Ground, ends: list[tuple[NDArray[np.intp], NDArray[np.intp]]], count: int) -> Floats:
    """Each group's links together; those that share a wire have no more than the wire, in one group at least."""
    groups, links = np.concatenate([group for group, _ in ends]), np.concatenate([link for _, link in ends])
    wide = len(ground.wires)
    keys, at = np.unique(groups * wide + ground.wires[links], return_inverse=True)
    together = np.bincount(at, ground.rates[links], len(keys))
    capped = np.minimum(together, ground.wire_rates[keys % wide]) if len(keys) else together
    summed: Floats = np.bincount(keys // wide, capped, count + 2)[: count + 1].astype(np.float64)
    return summed


def _crossing(ground: Ground, places: NDArray[np.intp], group: int | None, verb: str) -> tuple[int, ...]:
    tails, heads = places[ground.tails], places[ground.heads]
    count = int(places[ground.asked].max()) + 1
    ours = (tails == group, heads == group) if group is not None else (tails <= count, heads <= count)
    side = {"send": ours[0], "receive": ours[1]}.get(verb, ours[0] | ours[1])
    return tuple(np.flatnonzero((tails != heads) & side).tolist())


def _one(kind: str) -> str:
    return kind.replace("each", "a", 1).replace("a half", "half of the cluster")


def _all(kind: str, count: int) -> str:
    noun = kind.removeprefix("each ")
    return f"the two {noun[:-1]}ves" if noun == "half" else f"{count} {_plural(noun)}"


def _plural(noun: str) -> str:
    return noun.replace("part", "parts") if "part" in noun else f"{noun}s"
