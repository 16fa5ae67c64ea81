"""What goes wrong with several coordinators, by a seed: leaders pause, die, and are cut off from the register or from
their servers; the register does not answer anybody; clocks differ; servers die beside."""

from dataclasses import dataclass, replace
from functools import partial
from random import Random

from gradtide.testing.faults import COORDINATOR, Fault
from gradtide.testing.scenarios import Scenario, replicated_scenario_of
from gradtide.testing.simulator.actors import World
from gradtide.testing.simulator.election.coordinators import CoordinatorGroup
from gradtide.testing.simulator.election.register import RegisterFaults, SimulatedRegister

__all__ = ["Election", "election_of", "election_scenario_of"]

_LEADER = "leader"  # whoever leads when it happens
_LATEST_S = 14.0


@dataclass(frozen=True, slots=True)
class Election:
    """Beside a scenario of servers and clients."""

    coordinators: int
    register: RegisterFaults
    mishaps: tuple[tuple[str, str, float, float], ...]  # kind, who, when, for how long

    @property
    def ends_s(self) -> float:
        return max((at_s + for_s for _, _, at_s, for_s in self.mishaps), default=0.0)

    def begin(self, world: World, scenario: Scenario, *, fenced: bool = True) -> float:
        """The coordinators, and what will happen to them; returns when nothing more does."""
        random, drift = Random(scenario.seed ^ 0xC10C5), scenario.drift
        for i in range(self.coordinators):
            world.rates[f"coordinator{i}"] = 1.0 + random.uniform(-drift, drift)
        register = SimulatedRegister(world.clock, world.random, self.register, world.disk.write, fenced=fenced)
        group = CoordinatorGroup(world, register, self.coordinators, scenario.lease_s)
        register.wrote = group.wrote
        for kind, who, at_s, for_s in self.mishaps:
            world.clock.after(at_s, partial(_strike, group, kind, who, for_s))
        world.clock.after(self.ends_s, partial(_heal, register))
        return self.ends_s


def _heal(register: SimulatedRegister) -> None:
    register.faults = RegisterFaults()


def _strike(group: CoordinatorGroup, kind: str, who: str, for_s: float) -> None:
    leader, clock, network = group.leader, group.world.clock, group.world.network
    name = leader.name if who == _LEADER and leader is not None else who
    if kind == "register":
        group.register.cut.append("")
        clock.after(for_s, partial(group.register.cut.remove, ""))
        return
    if name not in group.actors:
        return
    actor = group.actors[name]
    if kind == "pause":
        actor.stop()
        clock.after(for_s, actor.go_on)
    elif kind == "kill":
        actor.kill()
        clock.after(for_s, partial(group.start, name))
    elif kind == "cut off":
        group.register.cut.append(name)
        clock.after(for_s, partial(group.register.cut.remove, name))
    else:
        walls = [("", name), (name, "")]
        network.walls += walls
        for wall in walls:
            clock.after(for_s, partial(network.walls.remove, wall))


def election_of(seed: int) -> Election:
    """Drawn by the seed."""
    random = Random(seed ^ 0xE1EC7)
    count = random.choice((2, 2, 3))
    bad = random.random() < 0.5
    faults = RegisterFaults(
        mean_delay_s=random.choice((0.002, 0.02, 0.2)),
        lost=0.1 if bad else 0.0,
        unanswered=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
        late=random.choice((0.0, 0.1, 0.3)) if bad else 0.0,
        early_end=random.choice((0.0, 0.0, 0.1)),
    )
    who = (_LEADER, _LEADER, *(f"coordinator{i}" for i in range(count)))
    kinds = ("pause", "pause", "kill", "cut off", "unplug", "register")
    mishaps = tuple(
        (random.choice(kinds), random.choice(who), 0.5 + random.random() * 9.0, random.choice((0.5, 2.0, 3.5, 5.0)))
        for _ in range(1 + random.randrange(5))
    )
    return Election(count, faults, mishaps)


def election_scenario_of(seed: int) -> Scenario:
    """Servers that die beside; what befalls the one coordinator of other scenarios is left out, and what is cut off
    from it."""
    random, scenario = Random(seed ^ 0xC0FFEE), replicated_scenario_of(seed)
    mishaps = tuple(_of_servers(fault) for fault in scenario.mishaps if fault.who != COORDINATOR)
    slower = replace(scenario, mishaps=mishaps, drift=random.choice((0.0, 0.02)), wild=False, operations=30)
    return replace(slower, pause_s=0.3)


def _of_servers(fault: Fault) -> Fault:
    return replace(fault, peer="") if fault.peer == COORDINATOR else fault
