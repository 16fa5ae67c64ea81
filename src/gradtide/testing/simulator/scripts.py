"""What simulated clients do: workers step through rounds, others push and pull as they like."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from random import Random

from gradtide.store.wire.messages import KeySpec, UpdateRule
from gradtide.store.wire.placement import block_elements
from gradtide.testing.simulator.actors import ClientActor, Script
from gradtide.testing.simulator.checkpoints import take_checkpoint

__all__ = ["WorkerPlan", "async_specs", "client_script", "round_specs", "worker_script"]

Steps = Generator[float | set[int], None, None]
_PATIENCE = 30  # tenths of a second


def round_specs(delay: int) -> tuple[KeySpec, ...]:
    """Keys in rounds: one small, one of two blocks."""
    two_blocks = (block_elements(8) + 3,)
    return (
        KeySpec("bias", (7,), "int64", UpdateRule("fold"), delay),
        KeySpec("weight", two_blocks, "int64", UpdateRule("fold"), delay),
    )


def async_specs() -> tuple[KeySpec, ...]:
    """Keys whose pushes are updates of their own."""
    return (
        KeySpec("sum", (block_elements(8) + 5,), "int64", UpdateRule("add")),
        KeySpec("last", (3,), "int64", UpdateRule("last")),
    )


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How one worker behaves."""

    seed: int
    specs: tuple[KeySpec, ...]
    last_round: int
    slow_s: float  # mean time a step takes
    configures_from: int = 0  # a round from which it sets another rate; 0: never
    goes_after: int = 0  # after so many rounds it goes; 0: stays
    says_goodbye: bool = True
    says_so_before: bool = False  # and announces it some rounds before
    saves_at: frozenset[int] = frozenset()  # after which rounds it takes a checkpoint


def _until_in(actor: ClientActor) -> Steps:
    """A worker that was struck off will be in again."""
    while not actor.session.ready:
        yield 0.1


def worker_script(plan: WorkerPlan) -> Script:
    """Pull, think, push; round after round."""

    def script(actor: ClientActor) -> Steps:
        random = Random(plan.seed)
        keys, first = tuple(spec.key for spec in plan.specs), actor.session.step
        until = 0
        yield {actor.init(spec) for spec in plan.specs}
        if plan.configures_from:
            yield from _until_in(actor)
            yield {actor.configure(key, 7, plan.configures_from) for key in keys}
        while actor.session.step <= plan.last_round:
            yield from _until_in(actor)
            if actor.session.step > plan.last_round:
                break
            yield {actor.pull(keys)}
            yield random.expovariate(1 / plan.slow_s)
            if not actor.session.ready or actor.session.step > plan.last_round:
                continue
            yield _push_step(actor, random, keys)
            if actor.session.ready and actor.session.last_round in plan.saves_at:
                yield from take_checkpoint(actor)
            if plan.says_so_before and not until and actor.session.step - first + 1 >= plan.goes_after:
                until = actor.announce_leave()
            went = until and actor.session.step >= until
            if went or (plan.goes_after and not until and actor.session.step - first + 1 >= plan.goes_after):
                for _ in range(_PATIENCE if actor.keeps_what_is_left_out else 0):
                    if actor.open:  # who waits for its last push leaves nothing behind
                        yield 0.1
                if plan.says_goodbye:
                    actor.leave()
                actor.kill()

    return script


def _push_step(actor: ClientActor, random: Random, keys: tuple[str, ...]) -> set[int]:
    """One step's pushes, in one request or one a key; sometimes the acknowledgement is waited for."""
    weight = float(1 + random.randrange(3))
    pull = random.random() < 0.2
    if random.random() < 0.5:
        pushed = {actor.push(keys, weight, pull=pull)}
    else:
        pushed = {actor.push((key,), weight, pull=pull) for key in random.sample(keys, len(keys))}
    return pushed if random.random() < 0.3 else set()


def client_script(
    seed: int,
    operations: int,
    pause_s: float = 0.02,
    saves_at: frozenset[int] = frozenset(),
    specs: Sequence[KeySpec] | None = None,
) -> Script:
    """Pushes and pulls in no order, several at once; before some of them it takes a checkpoint."""

    def script(actor: ClientActor) -> Steps:
        random, chosen = Random(seed), specs or async_specs()
        first, second = (spec.key for spec in chosen)
        yield {actor.init(spec) for spec in chosen}
        open_: set[int] = set()
        for number in range(operations):
            if number in saves_at:
                yield from take_checkpoint(actor)
            choice = random.random()
            if choice < 0.5:
                open_.add(
                    actor.push((first, second) if random.random() < 0.5 else (first,), pull=random.random() < 0.2)
                )
            elif choice < 0.6:
                open_.add(actor.push((second,)))
            elif choice < 0.9:
                open_.add(actor.pull((first,)))
            else:
                yield open_
                open_ = set()
            if random.random() < 0.5:
                yield random.expovariate(1 / pause_s)
        yield open_
        if seed % 2 == 0 and (left := actor.flush()):
            yield left

    return script
