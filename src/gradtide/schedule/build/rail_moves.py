"""What is sent for one chunk of a tree between machines: gathered inside each, along the tree, and all the way back."""

from itertools import chain, zip_longest
from typing import NamedTuple

from gradtide.schedule.build.exits import MachineExits
from gradtide.schedule.build.rails import RailTree, halved, needed

__all__ = ["RailMove", "moves_of"]


class RailMove(NamedTuple):
    """A chunk from one rank to another, and its turn among those of its level."""

    level: int
    turn: tuple[int, ...]
    source: int
    target: int
    channel: int  # 0 adds up


class _TreeEdge(NamedTuple):
    child: int
    parent: int
    turn: tuple[int, ...]  # among those of its level: who is needed the soonest goes first
    lane: int  # on the way back: what arrives in no fixed order must not wait in one queue


def moves_of(machines: list[MachineExits], tree: RailTree, turn: int) -> list[RailMove]:
    """What is sent for a chunk of this tree: to the heads, between heads to the root, and all the way back.

    Where no route leads from a leaf to the root, the root's neighbour takes what comes in place of its own part, which
    the root has already, and hands it on.
    """
    rank = {way.number: way.ranks[turn % len(way.ranks)] for way in (*tree.trunk, *chain.from_iterable(tree.leaves))}
    root = rank[tree.trunk[0].number]
    rounds = [[(rank[a.number], rank[b.number]) for a, b in level] for level in halved(tree.trunk)]
    leaves = [(rank[a.number], rank[b.number]) for a, b in tree.leaves]
    between = {leaf: to for leaf, to in leaves if to != root}
    rounds.append([(leaf, root) for leaf, _ in leaves])
    place = needed(rounds, root)
    inside = [_inside(machine, place) for machine in machines]
    gather = [list(chain.from_iterable(level)) for level in zip_longest(*inside, fillvalue=[])]
    levels = [*gather, *[[_TreeEdge(a, b, (place[a],), 0) for a, b in level] for level in rounds if level]]
    last = len(levels)
    moves = []
    for at, pair in ((at, pair) for at, level in enumerate(levels) for pair in level):
        back = 2 * last + 1 - at, _later(pair.turn)
        to = between.get(pair.child) if pair.parent == root else None
        if to is not None:
            moves += [RailMove(at, pair.turn, pair.child, to, 1), RailMove(last, pair.turn, to, root, 0)]
            moves += [RailMove(last + 1, back[1], root, to, 1), RailMove(*back, to, pair.child, 1)]
            continue
        moves.append(RailMove(at, pair.turn, pair.child, pair.parent, 0))
        if pair.child not in between.values():  # it has the sum already
            moves.append(RailMove(*back, pair.parent, pair.child, 1 + pair.lane))
    return moves


def _later(turn: tuple[int, ...]) -> tuple[int, ...]:
    """What was needed last is there first on the way back."""
    return tuple(-each for each in turn)


def _inside(machine: MachineExits, place: dict[int, int]) -> list[list[_TreeEdge]]:
    """Rounds inside a machine to its head. Back, each place of the head between machines has a lane of its own."""
    at = next(at for at, rank in enumerate(machine.ranks) if rank in place)
    head, rounds = machine.ranks[at], halved([*machine.ranks[at:], *machine.ranks[:at]])
    own = needed(rounds, head)
    return [[_TreeEdge(a, b, (place[head], own[a]), 1 + place[head]) for a, b in level] for level in rounds]
