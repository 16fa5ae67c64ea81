"""The rings and trees of a schedule: for a picture that shows them one by one."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gradtide.draw.rings_and_trees import RingOrTree
from gradtide.schedule.model import Op, Schedule
from gradtide.topology.routes import Routes

__all__ = ["find_rings_and_trees"]

Pairs = frozenset[tuple[int, int]]


def find_rings_and_trees(schedule: Schedule, routes: Routes) -> list[RingOrTree]:
    """The one that carries most first. Where each channel is a ring, or several beside each other, these are the ways;
    else each part of the buffer goes by a tree, and parts that go the same way are one."""
    channels, chunks = defaultdict[int, list[Op]](list), defaultdict[int, list[Op]](list)
    for op in schedule.ops:
        channels[op.channel].append(op)
        chunks[op.chunk].append(op)
    are_rings = all(_is_ring(_pairs(ops)) for ops in channels.values())
    sent: Counter[tuple[int, Pairs, Pairs]] = Counter()  # by root, pairs before and pairs after there is a sum
    for ops in channels.values() if are_rings else chunks.values():
        key = (-1, _pairs(ops), Pairs()) if are_rings else _tree(ops)
        sent[key] += sum(schedule.weights[op.chunk] for op in ops)
    whole, kind = sum(sent.values()), "ring" if are_rings else "tree"
    order = sorted(sent, key=lambda key: (-sent[key], key[0], sorted(key[1])))
    names = schedule.ranks
    return [
        RingOrTree(
            f"{kind} {number}",
            sent[key] / whole,
            tuple((names[a], names[b]) for a, b in sorted(key[1])),
            tuple((names[a], names[b]) for a, b in sorted(key[2]) if (b, a) not in key[1]),
            "" if are_rings else names[key[0]],
            frozenset(link for a, b in key[1] | key[2] for link in _links(routes, names[a], names[b])),
        )
        for number, key in enumerate(order, start=1)
    ]


def _links(routes: Routes, source: str, target: str) -> list[tuple[str, str]]:
    return [(link.source, link.target) for link in routes.find(source, target) or ()]


def _pairs(ops: Iterable[Op]) -> Pairs:
    return frozenset((op.src, op.dst) for op in ops)


def _is_ring(pairs: Pairs) -> bool:
    sources, targets = ({pair[end] for pair in pairs} for end in (0, 1))
    return len(pairs) > 2 and len(sources) == len(targets) == len(pairs)


def _tree(ops: Sequence[Op]) -> tuple[int, Pairs, Pairs]:
    """Where a part of the buffer is added up, and the pairs before and after that; where nothing is added up, from
    where it comes."""
    last = max((at for at, op in enumerate(ops) if op.kind == "reduce"), default=len(ops) - 1)
    root = ops[last].dst if ops[last].kind == "reduce" else ops[0].src
    return root, _pairs(ops[: last + 1]), _pairs(ops[last + 1 :])
