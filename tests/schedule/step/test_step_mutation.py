"""Whatever verify_step lets through gives what one device gives, in every order that the deps allow."""

import random
from dataclasses import replace

import pytest
from step_oracle import right, wanted
from step_shapes import mixed, pipeline, random_shape

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.model import StepPlan, Task
from gradtide.schedule.step.proof import verify_step

MUTANTS, ORDERS = 900, 3
LARGEST = 80  # tasks: every one of them is left out once
PLANS = [
    plan
    for shape in (
        mixed(),
        pipeline(2, 3, "gpipe"),
        pipeline(3, 4, "1f1b", samples=2),
        pipeline(2, 3, "zero-bubble"),
        pipeline(2, 2, "interleaved", per_row=2),
        *(random_shape(seed) for seed in range(24)),
    )
    if len((plan := build_step(shape)).tasks) <= LARGEST
]


def refused(plan: StepPlan) -> str:
    """Why the plan is refused, or nothing."""
    try:
        verify_step(plan)
    except ScheduleError as why:
        return str(why)
    return ""


def listed(plan: StepPlan, tasks: list[Task]) -> StepPlan:
    """The plan with these tasks, numbered by their places; a dep on one that is gone is gone too."""
    place = {task.id: at for at, task in enumerate(tasks)}
    renamed = [task._replace(deps=tuple(sorted(place[dep] for dep in task.deps if dep in place))) for task in tasks]
    return replace(plan, tasks=tuple(task._replace(id=at) for at, task in enumerate(renamed)))


def without(plan: StepPlan, gone: int, inherit: bool) -> StepPlan:
    """Without a task. Who waited for it waits for what it waited for, if `inherit`."""
    deps = plan.tasks[gone].deps if inherit else ()
    tasks = [
        task._replace(deps=tuple({*task.deps, *deps})) if gone in task.deps else task
        for task in plan.tasks
        if task.id != gone
    ]
    return listed(plan, tasks)


def still_ordered(plan: StepPlan, earlier: int, later: int) -> bool:
    """Whether deps other than the direct one say that the earlier task comes first."""
    seen, todo = set(), [dep for dep in plan.tasks[later].deps if dep != earlier]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += plan.tasks[at].deps
    return earlier in seen


@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
def test_no_task_can_be_left_out(plan):
    for task in plan.tasks:
        for inherit in (False, True):
            why = refused(without(plan, task.id, inherit))
            assert why, f"{task} is not missed"
            assert "\n" not in why


@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
def test_no_dep_can_be_left_out_that_others_do_not_imply(plan):
    for task in plan.tasks:
        for dep in task.deps:
            fewer = task._replace(deps=tuple(other for other in task.deps if other != dep))
            mutant = replace(plan, tasks=(*plan.tasks[: task.id], fewer, *plan.tasks[task.id + 1 :]))
            why = refused(mutant)
            assert bool(why) != still_ordered(plan, dep, task.id), f"{task} without {dep}"
            assert not why or why.startswith(f"task {task.id} (")


@pytest.mark.parametrize("plan", PLANS[:5], ids=range(5))
def test_nothing_can_be_done_twice(plan):
    for task in plan.tasks:
        twin = task._replace(id=-1, deps=(*task.deps, task.id))
        tasks = [*plan.tasks[: task.id + 1], twin, *plan.tasks[task.id + 1 :]]
        assert refused(listed(plan, tasks)), f"{task} twice"


@pytest.mark.parametrize("plan", PLANS[:5], ids=range(5))
def test_no_range_of_samples_can_be_another(plan):
    for task in plan.tasks:
        for first, last in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1)):
            if task.micro >= 0:
                wrong = task._replace(first=task.first + first, last=task.last + last)
                mutant = replace(plan, tasks=(*plan.tasks[: task.id], wrong, *plan.tasks[task.id + 1 :]))
                assert refused(mutant), f"{wrong}"


def mutate(plan: StepPlan, chance: random.Random) -> StepPlan:
    tasks = list(plan.tasks)
    task = chance.choice(tasks)
    match chance.choice(("drop", "duplicate", "move", "swap", "loosen", "redirect", "tighten")):
        case "drop":
            return without(plan, task.id, chance.random() < 0.5)
        case "duplicate":
            tasks.insert(chance.randrange(len(tasks)), task._replace(id=-1))
        case "move":
            tasks.insert(chance.randrange(len(tasks)), tasks.pop(task.id))
        case "swap":
            other = chance.randrange(len(tasks))
            tasks[task.id], tasks[other] = tasks[other], task
        case "loosen":
            tasks[task.id] = task._replace(deps=tuple(dep for dep in task.deps if chance.random() < 0.5))
        case "tighten":  # harmless where it goes back in the list
            tasks[task.id] = task._replace(deps=(*task.deps, chance.randrange(len(tasks))))
        case "redirect":
            count = len(plan.devices)
            change = chance.choice(
                (
                    {"devices": tuple(chance.sample(range(count), min(count, len(task.devices))))},
                    {"stage": task.stage + chance.choice((-1, 1))},
                    {"segment": task.segment + chance.choice((-1, 1))},
                    {"micro": task.micro + chance.choice((-1, 1))},
                    {"number": task.number + chance.choice((-1, 1))},
                    {"back": not task.back},
                    {"kind": chance.choice(("forward", "backward", "inputs", "weights", "sum", "update"))},
                )
            )
            tasks[task.id] = task._replace(**change)
    return listed(plan, tasks)


def test_every_mutant_that_is_wrong_in_any_order_is_refused():
    chance = random.Random(21)
    expected = [wanted(plan) for plan in PLANS]
    wrong = passed = 0
    for number in range(MUTANTS):
        which = number % len(PLANS)
        mutant = mutate(PLANS[which], chance)
        passes = not refused(mutant)
        if any(not 0 <= dep < task.id for task in mutant.tasks for dep in task.deps):
            assert not passes
        if passes:
            assert all(right(mutant, chance, expected[which]) for _ in range(ORDERS)), mutant
        wrong += not passes
        passed += passes
    assert wrong > MUTANTS / 2  # the mutations bite
    assert passed > MUTANTS / 20  # and verify_step does not just refuse everything
