"""balanced-rails: all NICs end together, although one is slow or dead, or machines are of two generations.

Inside each machine a chunk is gathered at the device whose NIC it takes, goes along a tree between machines, and all
the way back. Trees and their parts are those of build/rails.py; of its two kinds, a few slices of each are simulated.
"""

from itertools import chain, product, zip_longest
from math import sqrt
from typing import NamedTuple

from gradtide.schedule.build.exits import MachineExits, exits_of
from gradtide.schedule.build.rails import RailTree, halved, leaf_trees, least_trees, needed
from gradtide.schedule.build.wiring import need
from gradtide.schedule.build.writer import Writer
from gradtide.schedule.model import Kind, Schedule
from gradtide.schedule.predict.resources import Resources
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import Request, strategy

MOST_OPS = 100_000  # a second to write and prove, one more to simulate if all are in step
MOST_MOMENTS = 24_000  # at which something ends or starts to move: two seconds to share links out anew at each
FEW_OPS = 8_000  # to find out which trees are sooner
MOST_SLICES = 128
WORTH_A_TRY = 1.02  # times what the best takes: to promise more than that is not to be sooner
FAR = 1.1  # times the first promise: the other trees needn't be tried
TAPER = (3, 3, 2, 2, 1, 1)  # the last slices, in quarters: the pipeline drains sooner
LEAST_CHUNK_BYTES = 65_536  # of slices; finer ones are all latency
LEAST_BYTES = 4  # no element is cut
EXACT = 1_000_000  # weights are parts of about that
SAME = 1e-6


class _TreeEdge(NamedTuple):
    child: int
    parent: int
    turn: tuple[int, ...]  # among those of its level: who is needed the soonest goes first
    lane: int  # on the way back: what arrives in no fixed order must not wait in one queue


class _Promise(NamedTuple):
    seconds: float
    slices: int
    trees: list[RailTree]


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
    kinds = [trees for trees in (leaf_trees(request, machines), least_trees(request, machines)) if trees]
    need(bool(kinds), "no rail leads to every machine")
    fewest = min(len(trees) for trees in kinds)
    need(request.size_bytes >= LEAST_BYTES * fewest, f"{request.size_bytes} bytes don't cut into {fewest} parts")
    kinds = [trees for trees in kinds if request.size_bytes >= LEAST_BYTES * len(trees)]
    resources = Resources(request.topology, request.routes)
    promises = [_tried(request, machines, trees, resources) for trees in kinds]
    return _soonest(request, machines, sorted(promises, key=lambda promise: promise.seconds), resources)


def _soonest(
    request: Request, machines: list[MachineExits], promises: list[_Promise], resources: Resources
) -> Schedule:
    """What promises the least; where another one promises hardly more, both are simulated in full."""
    first, *others = promises
    schedule = _sliced(request, machines, first.trees, first.slices)
    if not others or others[0].seconds > FAR * first.seconds:
        return schedule
    size_bytes, topology = request.size_bytes, request.topology
    taken = simulate(schedule, topology, size_bytes, resources=resources).seconds
    if others[0].seconds > WORTH_A_TRY * taken:
        return schedule
    other = _sliced(request, machines, others[0].trees, others[0].slices)
    return other if simulate(other, topology, size_bytes, resources=resources).seconds < taken else schedule


def _tried(request: Request, machines: list[MachineExits], trees: list[RailTree], resources: Resources) -> _Promise:
    """How many slices of these trees are worth their time, and about how long they take, by simulating a few.

    To fill and to drain takes the less, the more slices there are.
    """
    ops = 2 * len(trees) * (len(request.devices) - 1)
    need(ops <= MOST_OPS, "with so many devices, to list and simulate all its ops takes too long")
    many = max(1, min(MOST_SLICES, MOST_OPS // ops, request.size_bytes // (len(trees) * LEAST_CHUNK_BYTES)))
    few = min(many, 1 + FEW_OPS // ops)
    run = simulate(_sliced(request, machines, trees, few), request.topology, request.size_bytes, resources=resources)
    moments = len({float(f"{moment:.9g}") for moment in (*run.moving_s.tolist(), *run.end_s.tolist())})
    many = max(few, min(many, few * MOST_MOMENTS // moments))
    shrinks = few / many if _equal(trees) else sqrt(few / many)  # unequal chunks get out of step
    return _Promise(run.busiest_seconds + shrinks * (run.seconds - run.busiest_seconds), many, trees)


def _sliced(request: Request, machines: list[MachineExits], trees: list[RailTree], slices: int) -> Schedule:
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
    quarters = (4,) * slices if slices < 2 * len(TAPER) else (4,) * (slices - len(TAPER)) + TAPER
    return Schedule(
        name="balanced-rails",
        collective="all_reduce",
        ranks=request.devices,
        contributors=len(request.devices),
        weights=tuple(max(1, round(tree.part * EXACT * size)) for size in quarters for tree in trees),
        ops=tuple(writer.ops),
    )


def _equal(trees: list[RailTree]) -> bool:
    return max(tree.part for tree in trees) <= (1 + SAME) * min(tree.part for tree in trees)


def _differ(machines: list[MachineExits]) -> bool:
    rates = [way.bytes_per_s for machine in machines for way in machine.exits]
    counts = {len(machine.exits) for machine in machines}
    return len(counts) > 1 or max(rates) > (1 + SAME) * min(rates)


def _moves(machines: list[MachineExits], tree: RailTree, turn: int) -> list[_Move]:
    """What is sent for a chunk of this tree: to the heads, between heads to the root, and all the way back."""
    rank = {way.number: way.ranks[turn % len(way.ranks)] for way in (*tree.trunk, *(leaf for leaf, _ in tree.leaves))}
    rounds = [[(rank[a.number], rank[b.number]) for a, b in level] for level in (*halved(tree.trunk), tree.leaves)]
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
