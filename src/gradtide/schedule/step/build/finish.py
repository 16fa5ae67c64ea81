"""What follows backward: sums of the gradients that several devices hold, the norm, the updates."""

from collections.abc import Iterator

from gradtide.schedule.step.build.expand import Expansion
from gradtide.schedule.step.model import Sum
from gradtide.schedule.step.shape import StepShape

__all__ = ["add_sum", "add_updates", "stages_of", "sums_of"]

NORM_BYTES = 8  # one number in double precision


def sums_of(shape: StepShape) -> tuple[Sum, ...]:
    """Of each stage's parameters over its copies, shard by shard; of tied ones over all holders, and only there."""
    found = []
    for at, stage in enumerate(shape.stages):
        tied = sum(tie.bytes for tie in shape.ties if at in tie.stages)
        if stage.copies > 1 and stage.gradient_bytes > tied:
            for shard in range(stage.shards):
                devices = sorted(stage.device(copy, shard) for copy in range(stage.copies))
                found.append(Sum(tuple(devices), stage.gradient_bytes - tied, stage=at, shard=shard))
    for number, tie in enumerate(shape.ties):
        for shard, holders in _holders(shape, tie.stages):
            if len(holders) > 1:
                found.append(Sum(holders, tie.bytes, shard=shard, tie=number))
    return tuple(found)


def _holders(shape: StepShape, stages: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(shard, devices) of each sum of a tied parameter.

    Stages with equally many shards add it up shard by shard. Otherwise it is whole on every shard: all devices take
    part in one sum (shard -1), to which only the first shard of each copy adds its gradient.
    """
    held = [shape.stages[stage] for stage in stages]
    if len({stage.shards for stage in held}) > 1:
        yield -1, tuple(sorted({device for stage in held for device in stage.devices}))
        return
    for shard in range(held[0].shards):
        copies = ((stage, copy) for stage in held for copy in range(stage.copies))
        yield shard, tuple(sorted({stage.device(copy, shard) for stage, copy in copies}))


def stages_of(shape: StepShape, summed: Sum) -> tuple[int, ...]:
    return shape.ties[summed.tie].stages if summed.tie >= 0 else (summed.stage,)


def add_sum(tasks: Expansion, number: int, summed: Sum) -> int:
    """May begin once every member has its last gradient."""
    stages = stages_of(tasks.shape, summed)
    deps = [task for device in summed.devices for stage in stages for task in _gradients(tasks, device, stage)]
    slowest = min(tasks.speed(device) for device in summed.devices)
    seconds = tasks.shape.overheads.gather.of(summed.bytes) / slowest
    fields = {"stage": summed.stage, "number": number, "bytes": float(summed.bytes), "seconds": seconds}
    return tasks.add("sum", summed.devices, deps, **fields)


def add_updates(tasks: Expansion, sums: tuple[Sum, ...], added: dict[int, int], devices: int) -> None:
    """One update a device that has anything to update; before it, if asked for, the norm of all gradients."""
    ready = [_ready(tasks, sums, added, device) for device in range(devices)]
    if tasks.shape.clip:
        norm = tasks.add("norm", tuple(range(devices)), set().union(*ready), bytes=float(NORM_BYTES))
        ready = [{norm} for _ in ready]
    for device, deps in enumerate(ready):
        mine = [stage for stage in tasks.shape.stages if device in stage.devices and stage.gradient_bytes]
        if mine:
            seconds = sum(stage.update.fixed_s for stage in mine) + tasks.shape.overheads.update_s
            tasks.add("update", (device,), deps, seconds=seconds / tasks.speed(device))


def _ready(tasks: Expansion, sums: tuple[Sum, ...], added: dict[int, int], device: int) -> set[int]:
    """What ends the gradients on a device: sums, and for what is summed with nobody the last backward."""
    deps: set[int] = set()
    for at, stage in enumerate(tasks.shape.stages):
        if device not in stage.devices or not stage.gradient_bytes:
            continue
        mine = {
            added[number]
            for number, one in enumerate(sums)
            if device in one.devices and at in stages_of(tasks.shape, one)
        }
        whole = any(one.stage == at for one in sums)
        deps |= mine if whole else mine | set(_gradients(tasks, device, at))
    return deps


def _gradients(tasks: Expansion, device: int, stage: int) -> list[int]:
    """Its last tasks that add to gradients of a stage: what follows from others is left out."""
    last = tasks.last.get((device, stage), {})
    if tasks.shape.order == "zero-bubble":
        return list(last.values())
    return [last[0]] if last else []
