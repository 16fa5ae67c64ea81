"""balanced-rails: all NICs end together, although one is slow or dead, or machines are of two generations.

Inside each machine a chunk is gathered at the device whose NIC it takes, goes along a tree between machines, and all
the way back. Trees and their parts are those of build/rails.py.
"""

from itertools import chain, product, zip_longest
from typing import NamedTuple

from gradtide.schedule.build.exits import MachineExits, exits_of
from gradtide.schedule.build.rails import RailTree, halved, needed, rail_trees
from gradtide.schedule.build.wiring import need
from gradtide.schedule.build.writer import Writer
from gradtide.schedule.model import Kind, Schedule
from gradtide.schedule.request import Request, strategy

MOST_OPS = 32_000  # a few seconds to simulate
MOST_OPS_ALIKE = 65_000  # of equal chunks: what is alike ends at the same moments, so an op takes a third of the time
MOST_SLICES = 32
LEAST_CHUNK_BYTES = 65_536  # of slices; finer ones are all latency
LEAST_BYTES = 4  # no element is cut
EXACT = 1_000_000  # weights are parts of about that
SAME = 1e-6


class _TreeEdge(NamedTuple):
    child: int
    parent: int
    turn: tuple[int, ...]  # among those of its level: who is needed the soonest goes first
    lane: int  # on the way back: what arrives in no fixed order must not wait in one queue


class _Move(NamedTuple):
    level: int
    turn: tuple[int, ...]
    source: int
    target: int
    channel: int  # 0 adds up


@strategy("balanced-rails")
def balanced_rails(request: Request) -> Schedule:
    need(request.collective == "all_reduce", "only a sum that all need is shared out between NICs")
    machines = exits_of(request)
    need(_differ(machines), "all NICs are equally fast, so there is nothing to balance")
    trees = rail_trees(request, machines)
    need(
        request.size_bytes >= LEAST_BYTES * len(trees), f"{request.size_bytes} bytes don't cut into {len(trees)} parts"
    )
    alike = max(tree.part for tree in trees) <= (1 + SAME) * min(tree.part for tree in trees)
    slices = _slices(request, len(trees), MOST_OPS_ALIKE if alike else MOST_OPS)
    writer = Writer()
    moves = [_moves(machines, tree, at) for at, tree in enumerate(trees)]
    rows = [(move, tree) for tree, each in enumerate(moves) for move in each]
    names, find = request.devices, request.routes.find
    ways = {(move.source, move.target) for move, _ in rows}
    need(all(find(names[a], names[b]) is not None for a, b in ways), "devices of a machine have no route to each other")
    rows.sort(key=lambda row: row[0][:2])
    for piece, (move, tree) in product(range(slices), rows):
        kind: Kind = "copy" if move.channel else "reduce"
        writer.send(move.source, move.target, piece * len(trees) + tree, kind, move.channel)
    return Schedule(
        name="balanced-rails",
        collective="all_reduce",
        ranks=request.devices,
        contributors=len(request.devices),
        weights=tuple(max(1, round(tree.part * EXACT)) for tree in trees) * slices,
        ops=tuple(writer.ops),
    )


def _differ(machines: list[MachineExits]) -> bool:
    rates = [way.bytes_per_s for machine in machines for way in machine.exits]
    counts = {len(machine.exits) for machine in machines}
    return len(counts) > 1 or max(rates) > (1 + SAME) * min(rates)


def _slices(request: Request, trees: int, most_ops: int) -> int:
    ops = 2 * trees * (len(request.devices) - 1)
    need(ops <= most_ops, "with so many devices, to list and simulate all its ops takes too long")
    return max(1, min(MOST_SLICES, most_ops // ops, request.size_bytes // (trees * LEAST_CHUNK_BYTES)))


def _moves(machines: list[MachineExits], tree: RailTree, turn: int) -> list[_Move]:
    """What is sent for a chunk of this tree: to the heads, between heads to the root, and all the way back."""
    rank = {way.number: way.ranks[turn % len(way.ranks)] for way in (*tree.trunk, *(leaf for leaf, _ in tree.leaves))}
    rounds = [[(rank[a.number], rank[b.number]) for a, b in level] for level in (tree.leaves, *halved(tree.trunk))]
    place = needed(rounds, rank[tree.trunk[0].number])
    inside = [_inside(machine, place) for machine in machines]
    gather = [list(chain.from_iterable(level)) for level in zip_longest(*inside, fillvalue=[])]
    between = [[_TreeEdge(a, b, (place[a],), 0) for a, b in level] for level in rounds if level]
    levels = [*gather, *between]
    up = [_Move(at, pair.turn, pair.child, pair.parent, 0) for at, level in enumerate(levels) for pair in level]
    back = [(at, pair) for at, level in enumerate(reversed(levels), len(levels)) for pair in level]
    return up + [_Move(at, _later(pair.turn), pair.parent, pair.child, 1 + pair.lane) for at, pair in back]


def _later(turn: tuple[int, ...]) -> tuple[int, ...]:
    """What was needed last is there first on the way back."""
    return tuple(-each for each in turn)


def _inside(machine: MachineExits, place: dict[int, int]) -> list[list[_TreeEdge]]:
    """Rounds inside a machine to its head. Back, each place of the head between machines has a lane of its own."""
    at = next(at for at, rank in enumerate(machine.ranks) if rank in place)
    head, rounds = machine.ranks[at], halved([*machine.ranks[at:], *machine.ranks[:at]])
    own = needed(rounds, head)
    return [[_TreeEdge(a, b, (place[head], own[a]), 1 + place[head]) for a, b in level] for level in rounds]
