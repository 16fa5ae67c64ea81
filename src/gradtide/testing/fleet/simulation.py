"""One run of a job on many nodes, by its seed, or many: `python -m gradtide.testing.fleet.simulation --seeds 1000`."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from gradtide.launch.spec import Spec
from gradtide.launch.target import Target
from gradtide.testing.fleet.checks import FleetViolation, Witness
from gradtide.testing.fleet.head import SimulatedHead
from gradtide.testing.fleet.network import Wires
from gradtide.testing.fleet.trouble import Mishap, Scene, scene_of
from gradtide.testing.fleet.workers import FleetWorld, SimulatedNode
from gradtide.testing.simulator.clock import VirtualClock

__all__ = ["FleetRun", "run_fleet", "simulate_fleet"]

LEASE_S = 2.0
_TURN_S = 0.1
_LIMIT_S = 900.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What a run showed."""

    scene: Scene
    generations: int
    steps: int
    finished: bool  # or else the job ended for want of workers
    violation: str
    log: tuple[str, ...]


class _FleetRunning:
    def __init__(self, scene: Scene, change: Callable[[FleetWorld, SimulatedHead], None]) -> None:
        self.scene, self.clock, self.witness = scene, VirtualClock(), Witness()
        draw = Random(f"fleet run {scene.seed}")
        self.wires = Wires(self.clock, draw)
        self.world = FleetWorld(self.wires, draw, self.witness, scene.steps, LEASE_S)
        spec = Spec(
            target=Target("script.py"), workers=scene.workers, min_workers=scene.needed,
            max_restarts=scene.max_restarts, name="simulated", step_s=_PATIENCE_S,
        )  # fmt: skip
        self.head = SimulatedHead(spec, self.witness, lambda: self.clock.now_s, LEASE_S)
        assert self.head.lines is not None or not spec.elastic
        if self.head.lines is not None:
            self.world.greet = self.head.lines.greet
        self.nodes = [SimulatedNode(self.world, place, f"n{place}", scene.slots) for place in range(scene.nodes)]
        self._joined = scene.nodes
        change(self.world, self.head)

    def go(self) -> str:
        """The first promise that was broken."""
        try:
            for node in self.nodes:
                self.head.join(node)
            self.head.start_all(self.head.placed())
            for mishap in self.scene.mishaps:
                self.clock.after(mishap.at_s, partial(self._happen, mishap))
            self._turn()
            over = self.clock.run(lambda: self.head.is_over, _LIMIT_S)
        except FleetViolation as error:
            return str(error)
        finally:
            self.head.close()
        if not over:
            return f"the job hangs: workers {sorted(self.head.job.running)[:8]} are waited for after {_LIMIT_S:g} s"
        return ""

    def _turn(self) -> None:
        self.head.turn()
        if not self.head.is_over:
            self.clock.after(_TURN_S, self._turn)

    def _happen(self, mishap: Mishap) -> None:
        self.witness.note(self.clock.now_s, f"{mishap.kind} {mishap.nodes} for {mishap.for_s:g} s")
        hit = [self.nodes[place] for place in mishap.nodes]
        match mishap.kind:
            case "kill node":
                hit[0].die(silently=True)
            case "kill agent":
                hit[0].die()
            case "orphans":
                hit[0].leave_orphans()
            case "kill worker":
                for worker in list(hit[0].workers.values())[:1]:
                    worker.end(-9)
            case "cut" | "cut together":
                self.wires.cut(self._number(), mishap.nodes)
                self.clock.after(mishap.for_s, lambda: self.wires.mend(mishap.nodes))
            case "stall":
                self.wires.stalled[mishap.nodes[0]] = self.clock.now_s + mishap.for_s
            case "late":
                self.wires.slow[mishap.nodes[0]] = mishap.for_s / 4
                self.clock.after(mishap.for_s, lambda: self.wires.slow.update({mishap.nodes[0]: 0.0}))
            case "new node":
                self._come()

    def _number(self) -> int:
        self._joined += 1
        return self._joined

    def _come(self) -> None:
        """A machine that nothing happens to."""
        node = SimulatedNode(self.world, self._number(), f"n{self._joined}", self.scene.slots)
        self.head.join(node)


def simulate_fleet(
    scene: Scene, change: Callable[[FleetWorld, SimulatedHead], None] = lambda world, head: None
) -> FleetRun:
    """`change` is for tests: a mutation that must be noticed."""
    run = _FleetRunning(scene, change)
    violation = run.go()
    finished = run.head.job.cause is None
    generations = max(run.witness.rosters, default=0)
    return FleetRun(scene, generations, run.witness.steps, finished, violation, tuple(run.witness.log))


def run_fleet(seeds: range, **sizes: int) -> list[FleetRun]:
    return [simulate_fleet(scene_of(seed, **sizes)) for seed in seeds]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args(arguments)
    generations = steps = finished = 0
    for seed in range(given.first, given.first + given.seeds):
        run = simulate_fleet(scene_of(seed))
        if run.violation:
            print("\n".join([*map(str, run.scene.mishaps), *run.log[-60:], f"seed {seed}: {run.violation}"]))
            return 1
        generations, steps, finished = generations + run.generations, steps + run.steps, finished + run.finished
    print(f"{given.seeds} seeds: {generations} generations, {steps} steps, {finished} jobs finished, no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
