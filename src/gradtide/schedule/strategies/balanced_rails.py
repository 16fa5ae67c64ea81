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
IN_STEP = 0.25  # moments an op, at most
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
    """What a few slices of these trees took, and about what as many as are worth their time would."""

    seconds: float
    slices: int
    trees: list[RailTree]
    few: int
    few_seconds: float
    in_step: bool  # much ends at the same moments: then finer slices are sooner done, and quickly simulated


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
    """What promises the least; where another one promises hardly more, or chunks get out of step, in full."""
    near = [promise for promise in promises if promise.seconds <= FAR * promises[0].seconds]
    if len(near) == 1 and near[0].in_step:
        return _sliced(request, machines, near[0].trees, near[0].slices)
    found = min(promises, key=lambda promise: promise.few_seconds)
    best, seconds = _sliced(request, machines, found.trees, found.few), found.few_seconds
    for promise in near:
        if promise.seconds < seconds and promise.slices > promise.few:
            finer = _sliced(request, machines, promise.trees, promise.slices)
            taken = simulate(finer, request.topology, request.size_bytes, resources=resources).seconds
            best, seconds = (finer, taken) if taken < seconds else (best, seconds)
    return best


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
    promised = run.busiest_seconds + shrinks * (run.seconds - run.busiest_seconds)
    return _Promise(promised, many, trees, few, run.seconds, moments < IN_STEP * len(run.end_s))


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
            moves += [_Move(at, pair.turn, pair.child, to, 1), _Move(last, pair.turn, to, root, 0)]
            moves += [_Move(last + 1, back[1], root, to, 1), _Move(*back, to, pair.child, 1)]
            continue
        moves.append(_Move(at, pair.turn, pair.child, pair.parent, 0))
        if pair.child not in between.values():  # it has the sum already
            moves.append(_Move(*back, pair.parent, pair.child, 1 + pair.lane))
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
