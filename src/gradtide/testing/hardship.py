"""Simulated stores to which happens what happens on several machines: clients restart and hang, words come
late, connections stall, clocks drift, and the coordinator's disk is full or slow, or has an old journal. In a third of
them somebody takes checkpoints meanwhile.

python -m gradtide.testing.hardship --seed 17              one seed, with what it did
python -m gradtide.testing.hardship --seeds 2000           many, until the first that breaks a promise
"""

import sys
from collections.abc import Callable
from functools import partial
from random import Random

from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.scenarios import Saver, Scenario, with_compression
from gradtide.testing.simulate import Outcome, first_broken, run_and_report, run_scenario, seed_parser
from gradtide.testing.simulator.network import Faults

__all__ = ["hard_scenario_of", "main", "run_hard_seed", "run_hard_seeds"]

_LEASE_S = 1.2
_WORKER_LEASE_S = 3.0


def hard_scenario_of(seed: int) -> Scenario:
    """Drawn by the seed."""
    random = Random(seed ^ 0x4A2D)
    replicas = random.choice((0, 1, 1, 2))
    servers = replicas + 1 + random.randrange(2)
    workers = random.randrange(4)
    clients = random.randrange(1, 4)
    faults = Faults(
        drop=random.choice((0.0, 0.0, 0.05)),
        duplicate=random.choice((0.0, 0.1)),
        mean_delay_s=random.choice((0.001, 0.005, 0.03)),
        heals_s=8.0,
        late=random.choice((0.0, 0.1, 0.3)),
    )
    return Scenario(
        seed=seed,
        script_seed=seed,
        servers=servers,
        workers=workers,
        clients=clients,
        delay=random.choice((0, 0, 1, 4)),
        rounds=4 + random.randrange(8),
        operations=10 + random.randrange(16),
        faults=faults,
        slow_s=random.choice((0.05, 0.3)),
        configures=random.random() < 0.2,
        replicas=replicas,
        mishaps=(
            *_mishaps_of_clients(random, workers, clients),
            *_mishaps_of_the_coordinator(random),
            *_mishaps_of_servers(random, servers, replicas),
            *_mishaps_of_links(random, servers, workers, clients),
        ),
        lease_s=_LEASE_S,
        pause_s=random.choice((0.05, 0.3)),
        worker_lease_s=random.choice((0.0, _WORKER_LEASE_S)),
        forget_leases=random.choice((0.0, 1.5, 3.0)),
        rejoin=random.random() < 0.6,
        drift=random.choice((0.0, 0.01)),
        savers=_savers(seed, workers, clients),
        unwritable=0.05 if seed % 4 == 0 else 0.0,
    )


def _savers(seed: int, workers: int, clients: int) -> tuple[Saver, ...]:
    """In a third of the seeds somebody takes checkpoints. Drawn for itself: all other seeds stay as they are."""
    random = Random(seed ^ 0xC4EC)
    if random.random() >= 0.35:
        return ()
    names = [f"worker{i}" for i in range(workers)] + [f"client{i}" for i in range(clients)]
    chosen = random.sample(names, min(len(names), random.choice((1, 1, 2))))
    return tuple(Saver(who, frozenset(random.sample(range(1, 12), random.randrange(1, 4)))) for who in chosen)


def _mishaps_of_clients(random: Random, workers: int, clients: int) -> tuple[Fault, ...]:
    """They are killed and started again, or hang: for a moment, longer than a lease, longer than a worker's."""
    names = [f"worker{i}" for i in range(workers)] + [f"client{i}" for i in range(clients)]
    found = []
    for _ in range(random.randrange(1, 4)):
        who, at_s = random.choice(names), 0.3 + 4 * random.random()
        if random.random() < 0.5:
            found.append(Fault.kill(who, at_s, random.choice((0.05, 0.5, 2.0)), silent=random.random() < 0.4))
        else:
            found.append(Fault.stop(who, at_s, random.choice((0.4, 1.5 * _LEASE_S, 2 * _WORKER_LEASE_S))))
    return tuple(found)


def _mishaps_of_the_coordinator(random: Random) -> tuple[Fault, ...]:
    """It comes back with an old journal, or dies in the middle of a write; its disk is full, or slow."""
    at_s, for_s = 0.5 + 4 * random.random(), random.choice((0.1, 0.5, 2.0))
    kind = random.choice(("", "old", "torn", "full", "slow"))
    if kind == "old":
        return (Fault.lose_entries(at_s, for_s, random.choice((1, 2, 5))),)
    if kind == "torn":
        return (Fault.tear(at_s, for_s),)
    if kind == "full":
        killed = [Fault.kill(COORDINATOR, at_s + 0.5, 0.2)] if random.random() < 0.3 else []
        return (Fault.fill_disk(at_s, for_s), *killed)
    return (Fault.slow_disk(at_s, 3 * for_s),) if kind == "slow" else ()


def _mishaps_of_servers(random: Random, servers: int, replicas: int) -> tuple[Fault, ...]:
    found = []
    for _ in range(random.randrange(3)):
        who, at_s = f"server{random.randrange(servers)}", 0.3 + 4 * random.random()
        if replicas and random.random() < 0.7:
            found.append(Fault.kill(who, at_s, random.choice((0.05, 0.3, 2.0)), silent=random.random() < 0.3))
        else:
            found.append(Fault.stop(who, at_s, random.choice((0.3, 1.0, 3.0))))
    return tuple(found)


def _mishaps_of_links(random: Random, servers: int, workers: int, clients: int) -> tuple[Fault, ...]:
    """Of connections whose ends live: they are reset, or lead nowhere for a while."""
    names = [f"server{i}" for i in range(servers)]
    others = [COORDINATOR, *names, *(f"worker{i}" for i in range(workers)), *(f"client{i}" for i in range(clients))]
    found = []
    for _ in range(random.randrange(3)):
        who, at_s = random.choice(names), 0.3 + 4 * random.random()
        peer = random.choice([name for name in others if name != who])
        stalls = random.random() < 0.5
        found.append(Fault.stall(who, at_s, 1.5 * _LEASE_S, peer) if stalls else Fault.reset(who, at_s, peer))
    return tuple(found)


def run_hard_seed(seed: int, *, compress: bool | None = None) -> Outcome:
    """Run the scenario that a seed draws. `compress`: whether its keys are compressed; None: in some seeds."""
    return run_scenario(with_compression(hard_scenario_of(seed), compress))


def run_hard_seeds(
    first: int, count: int, progress: Callable[[int], None] = lambda seed: None, *, compress: bool | None = None
) -> Outcome | None:
    """Run seeds in order; returns the first that broke a promise, or None."""
    return first_broken(partial(run_hard_seed, compress=compress), first, count, progress)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = seed_parser("gradtide.testing.hardship", __doc__, 1000)
    return run_and_report(parser.parse_args(arguments), run_hard_seed, parser.prog)


if __name__ == "__main__":
    sys.exit(main())
