"""Runs the store's three machines in one process, on a virtual clock and a bad network, by a seed.

python -m gradtide.testing.simulate --seed 17              one seed, with what it did
python -m gradtide.testing.simulate --seeds 20000          many, until the first that breaks a promise
python -m gradtide.testing.simulate --compress --seed 17   with keys that are compressed (without: one seed in eight)
"""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from gradtide.store.client.session import Session, SessionOptions
from gradtide.store.coordinator import membership
from gradtide.store.rules.codecs import encoded_bytes
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.snapshot import cutter
from gradtide.store.wire import placement
from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.scenarios import (
    Comer,
    Saver,
    Scenario,
    replicated_scenario_of,
    scenario_of,
    with_compression,
)
from gradtide.testing.simulator.actors import ClientActor, Script, World
from gradtide.testing.simulator.checkpoints import CheckpointDisk
from gradtide.testing.simulator.clock import VirtualClock
from gradtide.testing.simulator.compressed.bodies import unpack
from gradtide.testing.simulator.compressed.client import CompressedActor
from gradtide.testing.simulator.compressed.conservation import check_compressed
from gradtide.testing.simulator.compressed.keys import BLOCK_BYTES, compressed_async_specs, compressed_round_specs
from gradtide.testing.simulator.compressed.ledger import Ledger
from gradtide.testing.simulator.history import SimulationHistory, Violation, check
from gradtide.testing.simulator.network import Network
from gradtide.testing.simulator.outcome import finals, is_whole, kept_records, lost_shards
from gradtide.testing.simulator.processes import CoordinatorActor, HostActor
from gradtide.testing.simulator.scripts import WorkerPlan, async_specs, client_script, round_specs, worker_script
from gradtide.testing.simulator.trouble import Trouble

__all__ = [
    "Comer",
    "Outcome",
    "Saver",
    "Scenario",
    "first_broken",
    "main",
    "replicated_scenario_of",
    "run_and_report",
    "run_scenario",
    "run_seed",
    "run_seeds",
    "scenario_of",
    "seed_parser",
]

LIMIT_S = 300.0
HEAL_S = 60.0  # until all replicas are in sync again
PATIENCE_S = 20.0  # of a server with a checkpoint whose round nobody closes
SHARDS = 64  # a table of 1,024, as a real one, takes as long as all the rest


Begin = Callable[[World, Scenario], float]  # starts coordinators; returns when nothing more befalls them


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed."""

    scenario: Scenario
    history: SimulationHistory
    violations: tuple[Violation, ...]
    events: int
    digest: str
    happened: tuple[Fault, ...] = ()
    ledger: Ledger | None = None  # of compressed keys


def run_scenario(scenario: Scenario, begin: "Begin | None" = None) -> Outcome:
    """Run it to its end, and check what happened. `begin` starts coordinators, unless there is to be one."""
    with _small_and_fast(scenario):
        return _run(scenario, begin)


@contextmanager
def _small_and_fast(scenario: Scenario) -> Iterator[None]:
    """A store of few shards, that forgets as soon as the scenario says, and does not say when its disk is full."""
    log = logging.getLogger("gradtide.coordinator")
    usual = (placement.SHARDS, membership.FORGET_LEASES, cutter.PATIENCE_S)
    block_bytes = placement.BLOCK_BYTES
    was_disabled, log.disabled = log.disabled, True
    placement.SHARDS = SHARDS
    membership.FORGET_LEASES = scenario.forget_leases or membership.FORGET_LEASES  # type: ignore[assignment]
    cutter.PATIENCE_S = PATIENCE_S
    placement.BLOCK_BYTES = BLOCK_BYTES if scenario.compress else block_bytes
    try:
        yield
    finally:
        placement.BLOCK_BYTES = block_bytes
        placement.SHARDS, membership.FORGET_LEASES, cutter.PATIENCE_S = usual
        log.disabled = was_disabled


def _run(scenario: Scenario, begin: "Begin | None") -> Outcome:
    clock, random = VirtualClock(), Random(scenario.seed)
    world = World(clock, Network(clock, random, scenario.faults), random)
    world.worker_lease_s = scenario.worker_lease_s
    ledger = _compress(world) if scenario.compress else None
    world.rates = _rates(scenario)
    world.checkpoint_disk = CheckpointDisk(Random(scenario.seed ^ 0xD15C), scenario.unwritable)
    world.network.on_cut = lambda source, target: _notice_cut(world, source, target)
    troubled_s = begin(world, scenario) if begin is not None else 0.0
    if begin is None:
        CoordinatorActor(world, scenario.lease_s)
    for i in range(scenario.servers):
        HostActor(world, f"server{i}", scenario.servers, replicas=scenario.replicas)
    trouble = Trouble(world, scenario.replicas, scenario.lease_s, scenario.wild)
    trouble.plan(scenario.mishaps)
    trouble.ends_s = max(trouble.ends_s, troubled_s)
    _start_clients(world, scenario)
    come_s = max((comer.at_s for comer in scenario.comers), default=0.0)
    ended = clock.run(lambda: clock.now_s > come_s and _at_rest(world), LIMIT_S)
    if ended and (scenario.replicas or scenario.mishaps):
        clock.run(lambda: clock.now_s > trouble.ends_s, LIMIT_S)
        ended = clock.run(lambda: is_whole(world, scenario.replicas), clock.now_s + HEAL_S)
    if scenario.faults.late:
        clock.run(lambda: False, clock.now_s + scenario.faults.late_s)
    world.history.finals = finals(world)
    violations = check(world.history) + kept_records(world)
    if ledger is not None:
        ledger.gone.update(name for name, client in world.clients.items() if not client.alive)
        violations += check_compressed(world.history, ledger)
    if not ended:
        stuck = [name for name, client in world.clients.items() if not client.at_rest]
        text = f"{', '.join(stuck)} still wait" if stuck else "replicas are missing or differ, or somebody can't go"
        violations.insert(0, Violation("progress", f"{text} at {clock.now_s:.1f} s"))
    if not scenario.wild:
        violations += lost_shards(world)
    happened = tuple(trouble.happened)
    return Outcome(scenario, world.history, tuple(violations), clock.events, world.history.digest(), happened, ledger)


def _compress(world: World) -> Ledger:
    """Servers have real tensors, and decode what comes; so do clients."""
    ledger = Ledger()
    world.arithmetic, world.unpack = TorchArithmetic(), partial(unpack, ledger)
    world.start_client = partial(_start_compressed, ledger)
    return ledger


def _start_compressed(ledger: Ledger, world: World, session: Session[Any], script: Script) -> ClientActor:
    session.encoded_bytes = encoded_bytes
    return CompressedActor(world, session, script, ledger)


def _rates(scenario: Scenario) -> dict[str, float]:
    random = Random(scenario.seed ^ 0xC10C)
    counts = (("server", scenario.servers), ("client", scenario.clients), ("worker", scenario.workers))
    names = [COORDINATOR, *(f"{role}{i}" for role, count in counts for i in range(count))]
    drift = scenario.drift
    return {name: 1.0 + random.uniform(-drift, drift) for name in names} if drift else {}


def _at_rest(world: World) -> bool:
    return not world.coming and all(client.at_rest for client in world.clients.values())


def _start_clients(world: World, scenario: Scenario) -> None:
    options = SessionOptions(
        resend_s=0.2, resend_most_s=1.0, rejoin=scenario.rejoin, credit_bytes=scenario.credit_bytes
    )
    for i in range(scenario.clients):
        world.programs[f"client{i}"] = partial(_start_client, world, scenario, options, i)
    for i in range(scenario.workers):
        world.programs[f"worker{i}"] = partial(_start_worker, world, scenario, options, i)
    for name, program in world.programs.items():
        world.people[name] = program(0)
    if scenario.newcomer:
        late: Session[Any] = Session("newcomer", 0, scenario.workers, 0, options, token=300)
        plan = _plan(scenario, scenario.workers)
        world.clock.after(0.5, lambda: _late(world, late, plan))
    for i, comer in enumerate(scenario.comers, scenario.workers + scenario.newcomer):
        later: Session[Any] = Session(f"worker{i}", 0, i, 0, options, token=400 + i)
        stays = replace(
            _plan(scenario, i),
            goes_after=comer.goes_after,
            says_goodbye=comer.says_goodbye,
            says_so_before=comer.says_so_before,
        )
        world.clock.after(comer.at_s, lambda s=later, p=stays: _late(world, s, p))  # type: ignore[misc]


def _start_client(world: World, scenario: Scenario, options: SessionOptions, i: int, time: int) -> ClientActor:
    name, token = f"client{i}", 100 + i
    session: Session[Any] = Session(_nth(name, time), 0, options=options, token=1000 * time + token)
    seed, saves_at = scenario.script_seed * 31 + i + 1009 * time, _saves_at(scenario, name)
    specs = compressed_async_specs() if scenario.compress else async_specs()
    script = client_script(seed, scenario.operations, scenario.pause_s, saves_at, specs)
    return world.start_client(world, session, script)


def _start_worker(world: World, scenario: Scenario, options: SessionOptions, i: int, time: int) -> ClientActor:
    name, token, expected = _nth(f"worker{i}", time), 1000 * time + 200 + i, 0 if time else scenario.workers
    session: Session[Any] = Session(name, 0, i, expected, options, token=token)
    plan = _plan(scenario, i)
    return world.start_client(world, session, worker_script(replace(plan, seed=plan.seed + 1009 * time)))


def _nth(name: str, time: int) -> str:
    return f"{name}-{time}" if time else name


def _late(world: World, session: Session[Any], plan: WorkerPlan) -> None:
    world.start_client(world, session, worker_script(plan))


def _plan(scenario: Scenario, worker: int) -> WorkerPlan:
    goes = scenario.goer != "" and worker == scenario.workers - 1
    delay, seed = scenario.delay, scenario.script_seed
    return WorkerPlan(
        seed=seed * 37 + worker,
        specs=compressed_round_specs(delay, seed) if scenario.compress else round_specs(delay),
        last_round=scenario.rounds,
        slow_s=scenario.slow_s,
        configures_from=2 if scenario.configures and worker == 0 else 0,
        goes_after=max(1, scenario.rounds // 2) if goes else 0,
        says_goodbye=scenario.goer == "leaves",
        saves_at=_saves_at(scenario, f"worker{worker}"),
    )


def _saves_at(scenario: Scenario, name: str) -> frozenset[int]:
    return frozenset[int]().union(*(saver.at for saver in scenario.savers if saver.who == name))


def _notice_cut(world: World, source: str, target: str) -> None:
    """A client notices that its connection to a server broke."""
    for client, server in ((source, target), (target, source)):
        if client in world.clients and server in world.hosts:
            world.clock.after(0.01, lambda c=client, s=server: world.clients[c].lost(s))  # type: ignore[misc]


def run_seed(seed: int, *, replicas: bool = False, compress: bool | None = None) -> Outcome:
    """Run the scenario that a seed draws, of a store without replicas or of one with. `compress`: whether its keys are
    compressed; None: in some seeds."""
    scenario = replicated_scenario_of(seed) if replicas else scenario_of(seed)
    return run_scenario(with_compression(scenario, compress))


def run_seeds(
    first: int,
    count: int,
    progress: Callable[[int], None] = lambda seed: None,
    *,
    replicas: bool = False,
    compress: bool | None = None,
) -> Outcome | None:
    """Run seeds in order; returns the first that broke a promise, or None."""
    return first_broken(partial(run_seed, replicas=replicas, compress=compress), first, count, progress)


def first_broken(
    run: Callable[[int], Outcome], first: int, count: int, progress: Callable[[int], None]
) -> Outcome | None:
    """Of so many seeds in order, the outcome of the first that broke a promise."""
    for seed in range(first, first + count):
        outcome = run(seed)
        if outcome.violations:
            return outcome
        progress(seed)
    return None


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = seed_parser("gradtide.testing.simulate", __doc__, 2000)
    parser.add_argument("--replicas", action="store_true", help="scenarios with replicas, and servers that die")
    options = parser.parse_args(arguments)
    run = partial(run_seed, replicas=options.replicas)
    return run_and_report(options, run, parser.prog, " --replicas" if options.replicas else "")


def seed_parser(module: str, description: str, seeds: int) -> argparse.ArgumentParser:
    """The options of a command line that runs seeds."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seed", type=int, help="run this seed alone, and say what it did")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many seeds to run (default: {seeds})")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument(
        "--compress",
        action=argparse.BooleanOptionalAction,
        help="keys that are compressed in all of them, or in none (default: in one of eight)",
    )
    return parser


def run_and_report(options: argparse.Namespace, run: Callable[..., Outcome], command: str, more: str = "") -> int:
    """Runs what the options say and tells how it went, and the command (with `more`) to replay it; the exit code."""
    alone, write = options.seed is not None, sys.stdout.write
    run = partial(run, compress=options.compress)
    if options.compress is not None:
        more += " --compress" if options.compress else " --no-compress"
    outcome = run(options.seed) if alone else first_broken(run, options.first, options.seeds, lambda seed: None)
    if outcome is None:
        write(f"{options.seeds} seeds from {options.first} on: every promise kept\n")
        return 0
    if alone:
        for thing in (*outcome.history.operations, *outcome.happened, outcome.scenario):
            write(f"{thing}\n")
        if outcome.ledger is not None:
            write(f"{outcome.ledger}\n")
        write(f"{outcome.events} events, history {outcome.digest}\n")
    for violation in outcome.violations:
        write(f"seed {outcome.scenario.seed} broke {violation.promise!r}: {violation.text}\n")
    if outcome.violations and not alone:
        write(f"replay: {command} --seed {outcome.scenario.seed}{more}\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
