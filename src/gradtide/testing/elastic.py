"""Simulated stores that grow and shrink: servers and workers come and go, and some are killed in between.

python -m gradtide.testing.elastic --seed 17              one seed, with what it did
python -m gradtide.testing.elastic --seeds 2000           many, until the first that breaks a promise
"""

import sys
from collections.abc import Callable
from functools import partial
from random import Random

from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.scenarios import Comer, Scenario, with_compression
from gradtide.testing.simulate import Outcome, first_broken, run_and_report, run_scenario, seed_parser
from gradtide.testing.simulator.network import Faults

__all__ = ["elastic_scenario_of", "main", "run_elastic_seed", "run_elastic_seeds"]


def elastic_scenario_of(seed: int) -> Scenario:
    """Servers that join and leave, with and without replicas, workers that do, and mishaps, drawn by the seed."""
    random = Random(seed ^ 0xE1A5)
    replicas = random.choice((0, 0, 1, 2))
    servers = replicas + 1 + random.randrange(2)
    workers = random.randrange(4)
    faults = Faults(
        drop=random.choice((0.0, 0.0, 0.05)),
        duplicate=random.choice((0.0, 0.1)),
        mean_delay_s=random.choice((0.001, 0.005, 0.03)),
        heals_s=8.0,
    )
    return Scenario(
        seed=seed,
        script_seed=seed,
        servers=servers,
        workers=workers,
        clients=random.randrange(0 if workers else 1, 3),
        delay=random.choice((0, 0, 1, 4)),
        rounds=6 + random.randrange(10),
        operations=12 + random.randrange(20),
        faults=faults,
        slow_s=random.choice((0.05, 0.3)),
        goer=random.choice(("", "leaves", "dies")) if workers > 1 else "",
        configures=random.random() < 0.2,
        replicas=replicas,
        mishaps=_comings_and_goings(random, servers) + _mishaps(random, servers, replicas),
        lease_s=1.2,
        pause_s=random.choice((0.05, 0.3)),
        comers=_comers(random) if workers else (),
    )


def _comings_and_goings(random: Random, servers: int) -> tuple[Fault, ...]:
    found, there = [], [f"server{i}" for i in range(servers)]
    for number in range(2 + random.randrange(4)):
        at_s = 0.3 + 5 * random.random()
        if random.random() < 0.5:
            there.append(f"server{servers + number}")
            found.append(Fault.join(there[-1], at_s))
        else:
            found.append(Fault.leave(random.choice(there), at_s))
    return tuple(found)


def _mishaps(random: Random, servers: int, replicas: int) -> tuple[Fault, ...]:
    found = []
    if random.random() < 0.4:
        at_s, for_s = 0.3 + 4 * random.random(), random.choice((0.1, 0.5, 2.0))
        found.append(Fault.kill(COORDINATOR, at_s, for_s, silent=random.random() < 0.4))
    for _ in range(random.randrange(3)):
        who, at_s = f"server{random.randrange(servers + 2)}", 0.3 + 5 * random.random()
        kind = random.random()
        if kind < 0.5 and replicas:
            found.append(Fault.kill(who, at_s, random.choice((0.05, 0.3, 2.0)), silent=random.random() < 0.3))
        elif kind < 0.75:
            found.append(Fault.stop(who, at_s, random.choice((0.3, 1.0, 3.0))))
        else:
            peer = random.choice(["", COORDINATOR, f"server{random.randrange(servers)}"])
            if peer != who:
                found.append(Fault.cut(who, at_s, random.choice((0.3, 1.0, 3.0)), peer))
    return tuple(found)


def _comers(random: Random) -> tuple[Comer, ...]:
    found = []
    for _ in range(random.randrange(4)):
        goes_after, goodbye = random.choice((0, 1, 2, 4)), random.random() < 0.7
        says_so = goodbye and goes_after > 0 and random.random() < 0.6
        found.append(Comer(0.3 + 4 * random.random(), goes_after, goodbye, says_so))
    return tuple(found)


def run_elastic_seed(seed: int, *, compress: bool | None = None) -> Outcome:
    """Run the scenario that a seed draws. `compress`: whether its keys are compressed; None: in some seeds."""
    return run_scenario(with_compression(elastic_scenario_of(seed), compress))


def run_elastic_seeds(
    first: int, count: int, progress: Callable[[int], None] = lambda seed: None, *, compress: bool | None = None
) -> Outcome | None:
    """Run seeds in order; returns the first that broke a promise, or None."""
    return first_broken(partial(run_elastic_seed, compress=compress), first, count, progress)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = seed_parser("gradtide.testing.elastic", __doc__, 1000)
    return run_and_report(parser.parse_args(arguments), run_elastic_seed, parser.prog)


if __name__ == "__main__":
    sys.exit(main())
