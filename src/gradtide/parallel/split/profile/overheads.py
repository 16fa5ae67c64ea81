"""What devices do in a step beside their layers: measured on two that run a tiny model, and send each other bytes.

An exchange or a sum also takes the wires, which the simulation knows of. What is left of it is work of the devices.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from gradtide.events import Event, TaskDone
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.pool import find_devices
from gradtide.parallel.split.profile.entry import profile
from gradtide.parallel.split.profile.handling import DeviceTalk, Layers, lowest, talk
from gradtide.parallel.split.run.engine import SplitEngine
from gradtide.parallel.split.run.speaking.places import DevicesPlace, InThreads
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.planned import MEMORY_COPY
from gradtide.schedule.step.shape import Handling, Overheads

__all__ = ["DeviceWork", "measure_work", "overheads_beside", "wire_of", "with_overheads", "work_of_threads"]

STEPS, SAMPLES, MICRO_BATCHES = 16, 16, 4
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """As measured, wires and all."""

    task_s: float
    update_s: float
    step_s: float
    talk: DeviceTalk


def measure_work(make_place: Callable[[], DevicesPlace]) -> DeviceWork:
    """On two devices; where they are processes, both call it."""
    place = make_place()
    try:
        communicators = place.connect([(0, 1)], [(0, 1)])
        here = list(place.here)
        said = place.run(lambda device: talk(communicators[here.index(device)]))[0]
    finally:
        place.close()
    place = make_place()
    try:
        return DeviceWork(*_tiny_steps(place), said)
    finally:
        place.close()


def _tiny_steps(place: DevicesPlace) -> tuple[float, float, float]:
    """Seconds of a task, of an update and of a step beside them: what tasks take over what their layers do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x, y = torch.ones(SAMPLES, 4), torch.zeros(SAMPLES, dtype=torch.int64)
    chain = trace(model, x)
    costs = profile(chain, x, samples=SAMPLES, threads=1, optimizer="sgd")
    layout = Layout(("0", "1"), (Stage(0, 1, (0,)), Stage(1, 2, (1,))), MICRO_BATCHES)
    seen, layers = list[Event](), Layers()

    def emit(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TaskDone) and event.kind != "update":
            layers.run()

    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = SplitEngine(model, chain, layout, rule, place, emit=emit)
    loss, device = Loss("cross_entropy"), place.here[0]
    taken: dict[str, list[float]] = {"forward": [], "backward": [], "update": [], "step": []}
    for number in range(STEPS):
        seen.clear()
        begin = time.perf_counter()
        engine.step(x, y, loss, number)
        step_s = time.perf_counter() - begin
        tasks = [event for event in seen if isinstance(event, TaskDone)]
        taken["step"].append(step_s - max(one.end_s for one in tasks) + min(one.begin_s for one in tasks))
        for one in tasks:
            if one.device == device and one.kind in taken:
                taken[one.kind].append(one.end_s - one.begin_s - one.waited_s)
    found = {kind: lowest(seconds) for kind, seconds in taken.items()}
    unit, each = costs.units[device], SAMPLES // MICRO_BATCHES
    beside = found["forward"] + found["backward"] - unit.forward.of(each) - unit.backward.of(each)
    return max(0.0, beside / 2), max(0.0, found["update"] - unit.update_s), max(0.0, found["step"])


def wire_of(work: DeviceWork) -> tuple[float, float]:
    """Bytes a second and latency of the wire between the two: no slower than whatever is fastest over it."""
    said = work.talk
    per_byte = [said.message.per_byte_s - said.send.per_byte_s, said.exchange.per_byte_s, said.sum.per_byte_s]
    latency = [said.message.fixed_s - said.send.fixed_s, said.exchange.fixed_s, said.sum.fixed_s / 2]
    return 1 / max(1e-12, min(per_byte)), max(0.0, min(latency))


def overheads_beside(work: DeviceWork, bytes_per_s: float, latency_s: float) -> Overheads:
    """What is left for the devices to do, where the wire is this fast."""
    said, each = work.talk, 1 / bytes_per_s
    sums = _beside(said.sum, each, 2 * latency_s)  # of two devices: half of it there, and half of it back
    return Overheads(
        task_s=work.task_s,
        send=said.send,
        receive=_beside(said.message, each + said.send.per_byte_s, latency_s + said.send.fixed_s),
        exchange=_beside(said.exchange, each, latency_s),
        gather=Handling(said.gather.fixed_s + sums.fixed_s, said.gather.per_byte_s + sums.per_byte_s),
        add_s_per_byte=said.add_s_per_byte,
        update_s=work.update_s,
        step_s=work.step_s,
    )


def _beside(whole: Handling, per_byte_s: float, fixed_s: float) -> Handling:
    return Handling(max(0.0, whole.fixed_s - fixed_s), max(0.0, whole.per_byte_s - per_byte_s))


def with_overheads(costs: ModelCosts, topology: object = None) -> ModelCosts:
    """As measured between two devices of this process. Of devices that are wired otherwise (a topology is given) only
    what does not depend on bytes is known."""
    work = work_of_threads()
    own = overheads_beside(work, MEMORY_COPY, 0.0)
    return replace(costs, overheads=own if topology is None else own.without_bytes())


@cache
def work_of_threads() -> DeviceWork:
    """Measured once."""
    devices = find_devices(["cpu:0", "cpu:1"])
    return measure_work(lambda: InThreads(devices, TIMEOUT_S))
