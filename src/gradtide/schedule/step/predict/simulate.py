"""Predicts when every task of a step begins and ends, who idles, and what each link carries.

A device computes and exchanges one thing after the other; messages and sums move beside that and meet on the links
(max-min fair). That a lane has one slot is left out: a sender keeps what can't leave yet, and goes on.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.schedule.predict.simulate import simulate_chunks
from gradtide.schedule.step.model import StepPlan
from gradtide.schedule.step.predict.flows import Flows, with_clocks
from gradtide.topology.model import Topology

__all__ = ["StepSimulation", "simulate_step"]


@dataclass(frozen=True, slots=True, eq=False)
class StepSimulation:
    """When everything happened. Arrays stand in the order of the plan's tasks, and of the topology's links."""

    seconds: float
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    idle: tuple[float, ...]  # of each device: the share of the step in which it computes nothing
    link_bytes: npt.NDArray[np.float64]
    busiest_link: str  # or the shared wire that its load keeps busy the longest; "" on free links
    busiest_seconds: float

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which nothing is computed."""
        return sum(self.idle) / len(self.idle)

    def __repr__(self) -> str:
        return f"StepSimulation({self.seconds:.6g} s, bubble {self.bubble:.1%}, busiest {self.busiest_link or 'none'})"


def simulate_step(plan: StepPlan, topology: Topology | None, latency: bool = True) -> StepSimulation:
    """Runs a step that was verified. Without a topology links are free: what is left are the waits for each other."""
    flows = Flows(plan, topology, latency)
    run = simulate_chunks(flows.schedule(), with_clocks(plan, topology), flows.bytes, latency=latency)
    start = np.array([run.start_s[op] for op in flows.begin])
    end = np.array([run.end_s[op] for op in flows.end])
    slowest = min(plan.shape.speeds, default=1.0)
    seconds = (float(end.max()) if len(end) else 0.0) + plan.shape.overheads.step_s / slowest
    computed = [0.0] * len(plan.devices)
    for task in plan.tasks:
        for device in task.devices[:1] if task.kind == "message" else task.devices:
            computed[device] += task.seconds
    idle = tuple(1 - busy / seconds if seconds else 0.0 for busy in computed)
    link_bytes = run.link_bytes[: len(topology.links)] if topology else np.zeros(0)
    return StepSimulation(seconds, start, end, idle, link_bytes, *_busiest(topology, link_bytes))


def _busiest(topology: Topology | None, link_bytes: npt.NDArray[np.float64]) -> tuple[str, float]:
    """The link or wire with the most seconds of traffic; of equals the first."""
    carried: dict[str, float] = defaultdict(float)
    width: dict[str, float] = defaultdict(float)
    for link, size in zip(topology.links if topology else (), link_bytes, strict=True):
        for name in (f"{link.source}->{link.target}", link.wire):
            if name:
                carried[name] += float(size)
                width[name] = max(width[name], link.bytes_per_s * link.count)
    busy = {name: size / width[name] for name, size in carried.items() if size}
    name = max(busy, key=lambda name: busy[name], default="")
    return name, busy.get(name, 0.0)
