"""Whatever verify lets through gives the right result, in every order that the deps allow."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gradtide.errors import ScheduleError
from gradtide.schedule import strategies
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.verify import verify
from gradtide.topology.presets import preset
from gradtide.topology.what_if import degraded

pytestmark = pytest.mark.quick

assert strategies.__all__

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
MUTANTS, ORDERS = 1000, 50


def originals() -> list[Schedule]:
    found = []
    places = [preset(name) for name in ("pcie-4gpu", "ethernet-cluster:2x2@25", "ring:3", "star:5")]
    for topology in (*places, degraded(preset("rail:2x2x2@100"), "host1.nic0", 0.5)):
        devices = tuple(node.name for node in topology.nodes if node.kind == "device")
        for collective in COLLECTIVES:
            request = Request(topology, devices, 150_000, collective, root=1)  # type: ignore[arg-type]
            for strategy, build in STRATEGIES.items():
                if strategy == "packed-trees" and topology.name != "pcie-4gpu":
                    continue  # packing takes longer than all that is done with it here
                try:
                    schedule = build(request)
                except NotApplicable:
                    continue
                if len(schedule.ops) <= 80:
                    found.append(schedule)
    return found


def mutate(schedule: Schedule, chance: random.Random) -> Schedule:
    ops = list(schedule.ops)
    at = chance.randrange(len(ops))
    op = ops[at]
    match chance.choice(("drop", "duplicate", "reorder", "swap", "loosen", "redirect")):
        case "drop":
            kept = op.deps if chance.random() < 0.5 else ()  # who waited for it waits for what it waited for
            del ops[at]
            ops = [o._replace(deps=tuple(sorted({*o.deps, *kept} - {op.id}))) if op.id in o.deps else o for o in ops]
        case "duplicate":
            twin = op._replace(id=len(ops), deps=(*op.deps, op.id) if chance.random() < 0.7 else op.deps)
            ops.insert(at + 1, twin)
            if chance.random() < 0.5:  # and who waited for it waits for both
                ops = [o._replace(deps=(*o.deps, twin.id)) if op.id in o.deps and o != twin else o for o in ops]
        case "reorder":
            ops.insert(chance.randrange(len(ops)), ops.pop(at))
        case "swap":
            other = chance.randrange(len(ops))
            ops[at], ops[other] = (
                ops[other]._replace(id=op.id, deps=op.deps),
                op._replace(id=ops[other].id, deps=ops[other].deps),
            )
        case "loosen":
            ops[at] = op._replace(deps=tuple(dep for dep in op.deps if chance.random() < 0.5))
        case "redirect":
            field = chance.choice(("src", "dst", "chunk", "kind"))
            value = {
                "src": chance.randrange(len(schedule.ranks)),
                "dst": chance.randrange(len(schedule.ranks)),
                "chunk": chance.randrange(len(schedule.weights)),
                "kind": "copy" if op.kind == "reduce" else "reduce",
            }[field]
            ops[at] = op._replace(**{field: value})
    return replace(schedule, ops=tuple(ops))


def orders(ops: tuple[Op, ...], chance: random.Random) -> Iterator[list[Op]]:
    """Random orders that the deps allow; a cycle leaves ops out."""
    followers: dict[int, list[Op]] = {op.id: [] for op in ops}
    for op in ops:
        for dep in set(op.deps):
            followers[dep].append(op)
    while True:
        missing = {op.id: len(set(op.deps)) for op in ops}
        ready = [(chance.random(), op.id, op) for op in ops if not op.deps]
        heapq.heapify(ready)
        order = []
        while ready:
            op = heapq.heappop(ready)[2]
            order.append(op)
            for follower in followers[op.id]:
                missing[follower.id] -= 1
                if not missing[follower.id]:
                    heapq.heappush(ready, (chance.random(), follower.id, follower))
        yield order


def right(schedule: Schedule, order: list[Op], chance: random.Random) -> bool:
    """Runs the ops on integers, memory that nobody wrote full of rubbish, and looks at the result."""
    chunks, count = range(len(schedule.weights)), schedule.contributors
    memory = [[chance.getrandbits(60) for _ in chunks] for _ in schedule.ranks]
    inputs = [row[:] for row in memory]
    for op in order:
        value = memory[op.src][op.chunk]
        memory[op.dst][op.chunk] = value + (memory[op.dst][op.chunk] if op.kind == "reduce" else 0)
    for chunk in chunks:
        total = sum(inputs[rank][chunk] for rank in range(count))
        if schedule.collective in ("reduce", "reduce_scatter"):
            holders, wanted = [schedule.owners[chunk]], total
        else:
            holders = list(range(count))
            wanted = total if schedule.collective == "all_reduce" else inputs[schedule.owners[chunk]][chunk]
        if any(memory[rank][chunk] != wanted for rank in holders):
            return False
    return len(order) == len(schedule.ops)


def accepted(schedule: Schedule) -> bool:
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


def test_every_mutant_that_is_wrong_in_any_order_is_refused():
    chance = random.Random(20)
    schedules = originals()
    assert {schedule.name for schedule in schedules} == set(STRATEGIES)
    wrong = passed = 0
    for number in range(MUTANTS):
        mutant = mutate(schedules[number % len(schedules)], chance)
        passes = accepted(mutant)
        runs = orders(mutant.ops, chance)
        fine = all(right(mutant, next(runs), chance) for _ in range(ORDERS))
        assert fine or not passes, f"wrong, but accepted: {mutant}"
        wrong += not fine
        passed += passes
    assert wrong > MUTANTS / 2  # the mutations bite
    assert passed > MUTANTS / 20  # and verify does not just refuse everything
