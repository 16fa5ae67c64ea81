"""Scenarios: everything about a simulated run but for chance, drawn by a seed."""

from dataclasses import dataclass, replace
from random import Random

from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.simulator.network import Faults

__all__ = ["Comer", "Saver", "Scenario", "replicated_scenario_of", "scenario_of", "with_compression"]

_SMALL_CREDIT_BYTES = 512  # where blocks are small


@dataclass(frozen=True, slots=True)
class Comer:
    """A worker that comes later, and goes after so many rounds (0: stays)."""

    at_s: float
    goes_after: int = 0
    says_goodbye: bool = True
    says_so_before: bool = False


@dataclass(frozen=True, slots=True)
class Saver:
    """A client that takes checkpoints: after these of its rounds, if it is a worker, or before these operations."""

    who: str
    at: frozenset[int]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run, but for chance."""

    seed: int  # of the network
    script_seed: int  # of what clients do
    servers: int
    workers: int
    clients: int
    delay: int
    rounds: int
    operations: int  # of each client
    faults: Faults
    slow_s: float = 0.02
    newcomer: bool = False  # one more worker, later
    goer: str = ""  # "leaves" or "dies": what the last worker does half way
    configures: bool = False
    credit_bytes: int = 64 << 20
    replicas: int = 0
    mishaps: tuple[Fault, ...] = ()
    wild: bool = False  # mishaps may be more than the replicas can make up for
    lease_s: float = 2.0
    pause_s: float = 0.02  # of a client between operations
    comers: tuple[Comer, ...] = ()
    worker_lease_s: float = 0.0  # how long a client may hang while its connection stands; 0: a lease
    forget_leases: float = 0.0  # after how many a client is forgotten; 0: as a real store does
    drift: float = 0.0  # by how much each machine's clock may be too fast or too slow
    rejoin: bool = False  # workers that were struck off come again by themselves
    savers: tuple[Saver, ...] = ()
    unwritable: float = 0.0  # how likely a server can't write its part of a checkpoint
    compress: bool = False  # keys of real tensors, compressed


def replicated_scenario_of(seed: int) -> Scenario:
    """A store with replicas, and mishaps to its servers and its coordinator, drawn by the seed."""
    random = Random(seed ^ 0x5EED)
    wild = random.random() < 0.15
    replicas = random.choice((1, 1, 2))
    servers = replicas + 1 + random.randrange(2)
    workers = 0 if wild else random.randrange(3)
    faults = Faults(
        drop=random.choice((0.0, 0.0, 0.05, 0.3 if wild else 0.1)),  # who never gets through is not in sync any more
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
        rounds=4 + random.randrange(6),
        operations=8 + random.randrange(16),
        faults=faults,
        slow_s=random.choice((0.05, 0.3)),
        newcomer=workers > 0 and random.random() < 0.2,
        configures=random.random() < 0.2,
        replicas=replicas,
        mishaps=_mishaps(random, servers, wild),
        wild=wild,
        lease_s=1.2,
        pause_s=random.choice((0.05, 0.3)),
    )


def _mishaps(random: Random, servers: int, wild: bool) -> tuple[Fault, ...]:
    names = [f"server{i}" for i in range(servers)]
    found = []
    if random.random() < 0.4:
        at_s, for_s = 0.3 + 4 * random.random(), random.choice((0.1, 0.5, 2.0))
        if random.random() < 0.2:
            found.append(Fault.stop(COORDINATOR, at_s, for_s))
        else:
            disk, silent = random.random() < 0.7 or wild, random.random() < 0.4
            found.append(Fault.kill(COORDINATOR, at_s, for_s, disk=disk, silent=silent))
    for _ in range(1 + random.randrange(4)):
        who, at_s = random.choice(names), 0.3 + 5 * random.random()
        kind = random.random()
        if kind < 0.5:
            found.append(Fault.kill(who, at_s, random.choice((0.05, 0.3, 2.0)), silent=random.random() < 0.3))
        elif kind < 0.7:
            found.append(Fault.stop(who, at_s, random.choice((0.3, 1.0, 3.0))))
        else:
            peer = random.choice(["", COORDINATOR, *(name for name in names if name != who)])
            way = random.choice(("both", "to", "from"))
            found.append(Fault.cut(who, at_s, random.choice((0.3, 1.0, 3.0)), peer, way))  # type: ignore[arg-type]
    return tuple(found)


def scenario_of(seed: int) -> Scenario:
    """A scenario, drawn by the seed."""
    random = Random(seed)
    workers = random.randrange(4)
    faults = Faults(
        drop=random.choice((0.0, 0.05, 0.3)),
        duplicate=random.choice((0.0, 0.1, 0.3)),
        mean_delay_s=random.choice((0.001, 0.01, 0.05)),
        cut=random.choice((0.0, 0.0, 0.01)),
        heals_s=random.choice((1.0, 3.0)),
    )
    return Scenario(
        seed=seed,
        script_seed=seed,
        servers=1 + random.randrange(3),
        workers=workers,
        clients=random.randrange(0 if workers else 1, 3),
        delay=random.choice((0, 0, 1, 4)),
        rounds=2 + random.randrange(4),
        operations=4 + random.randrange(8),
        faults=faults,
        newcomer=workers > 0 and random.random() < 0.3,
        goer=random.choice(("", "", "leaves", "dies")) if workers > 1 else "",
        configures=random.random() < 0.3,
        credit_bytes=random.choice((1 << 20, 64 << 20)),
    )


def with_compression(scenario: Scenario, compress: bool | None) -> Scenario:
    """With keys that are compressed, or without; None: one seed in eight has them."""
    if not (scenario.seed % 8 == 5 if compress is None else compress):
        return scenario
    small = scenario.credit_bytes <= 1 << 20
    return replace(
        scenario,
        compress=True,
        configures=False,  # sums and means have nothing to configure
        credit_bytes=_SMALL_CREDIT_BYTES if small else scenario.credit_bytes,
    )
