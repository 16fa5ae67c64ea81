"""What is known of a model before it runs on two processes: layouts, the wire between them, and their predictions."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gradtide.collective import Group
from gradtide.parallel.split.cut.ways import default_ways
from gradtide.parallel.split.profile.overheads import measure_work, overheads_beside, wire_of
from gradtide.parallel.split.run.speaking.places import InProcess
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.predict.simulate import simulate_step
from gradtide.schedule.step.shape import Overheads
from gradtide.schedule.step.shaping import shape_of
from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["layouts_of", "predicted", "probe", "step_seconds"]

DEVICES = ("cpu:0", "cpu:1")


def layouts_of(chain: Chain, costs: ModelCosts) -> dict[str, Layout]:
    """Copies, pipelines, shards, and copies followed by shards, on two devices. Pipelines are cut at half the time."""
    names, count = tuple(unit.name for unit in chain.units), len(chain.units)
    cut = _half(costs)
    pipeline = (Stage(0, cut, (0,)), Stage(cut, count, (1,)))
    found = {"copies": Layout(names, (Stage(0, count, (0, 1)),))}
    for micro_batches in (2, 4, 8):
        found[f"pipeline, {micro_batches} parts"] = Layout(names, pipeline, micro_batches)
    found["shards"] = Layout(names, (_sharded(chain, Stage(0, count, (0, 1), 2)),))
    found["copies, then shards"] = Layout(names, (Stage(0, cut, (0, 1)), _sharded(chain, Stage(cut, count, (0, 1), 2))))
    return found


def _sharded(chain: Chain, stage: Stage) -> Stage:
    return replace(stage, ways=default_ways(chain, stage))


def _half(costs: ModelCosts) -> int:
    seconds = [unit.forward.of(costs.samples) + unit.backward.of(costs.samples) for unit in costs.units]
    before = [sum(seconds[:at]) for at in range(1, len(seconds))]
    return 1 + min(range(len(before)), key=lambda at: abs(before[at] - sum(seconds) / 2))


def probe(group: Group) -> tuple[Topology, Overheads]:
    """Two devices, how fast the wire between them is, and what they do in a step beside their layers."""
    work = measure_work(lambda: InProcess(group))
    wire = wire_of(work)
    nodes = tuple(Node(name, NodeKind.DEVICE, "host") for name in DEVICES)
    links = tuple(Link(DEVICES[a], DEVICES[1 - a], *wire) for a in range(2))
    return Topology("two processes", nodes, links), overheads_beside(work, *wire)


def predicted(layout: Layout, costs: ModelCosts, wire: Topology) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and those of the first device's tasks, by kind."""
    plan = build_step(shape_of(layout, costs), DEVICES)
    busy: dict[str, float] = {}
    for task in plan.of_device(0):
        if task.kind != "message" or task.devices[0] == 0:
            busy[task.kind] = busy.get(task.kind, 0.0) + task.seconds
    return simulate_step(plan, wire).seconds, busy


def step_seconds(step: Callable[[], object], group: Group, steps: int) -> float:
    """Of the slower of the two, a step."""
    group.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    mine = torch.tensor([(time.perf_counter() - begin) / steps], dtype=torch.float64)
    return float(group.all_gather(mine).max())
