"""What a shape must be before a step is built of it: one line says what is wrong."""

from gradtide.errors import ScheduleError
from gradtide.schedule.step.shape import Crossing, StageShape, StepShape, Tie

__all__ = ["check_shape", "device_count"]


def device_count(shape: StepShape) -> int:
    return 1 + max(device for stage in shape.stages for device in stage.devices)


def check_shape(shape: StepShape) -> None:
    """Raises ScheduleError unless a step can be built of it."""
    if not shape.stages:
        raise ScheduleError("a step needs one stage or more")
    if not shape.micro_batches or min(shape.micro_batches) < 0:
        raise ScheduleError(f"a step needs micro-batches of 0 samples or more, not {shape.micro_batches}")
    for at, stage in enumerate(shape.stages):
        _check_stage(at, stage)
    count, used = device_count(shape), sorted({device for stage in shape.stages for device in stage.devices})
    idle = next((at for at, device in enumerate(used) if device != at), None)
    if idle is not None:
        raise ScheduleError(f"device {idle} has no stage; number the devices from 0 without a gap")
    if shape.speeds and (len(shape.speeds) != count or min(shape.speeds) <= 0):
        raise ScheduleError(f"{count} devices need {count} speeds above 0, not {shape.speeds}")
    for number, crossing in enumerate(shape.crossings):
        _check_crossing(number, crossing, shape)
    for tie in shape.ties:
        _check_tie(tie, shape)


def _check_stage(at: int, stage: StageShape) -> None:
    devices, who = stage.devices, f"stage {at}"
    if not devices or len(set(devices)) != len(devices) or min(devices) < 0:
        raise ScheduleError(f"{who}: needs different devices, numbered from 0, not {devices}")
    if stage.shards < 1 or len(devices) % stage.shards:
        raise ScheduleError(f"{who}: {len(devices)} devices can't be copies of {stage.shards} shards each")
    if not stage.segments:
        raise ScheduleError(f"{who}: has no segment to compute")
    if stage.gradient_bytes and not stage.trained:
        raise ScheduleError(f"{who}: has {stage.gradient_bytes} bytes of gradients, but is said not to be trained")


def _check_crossing(number: int, crossing: Crossing, shape: StepShape) -> None:
    who = f"crossing {number} ({crossing.source} to {crossing.target})"
    if not 0 <= crossing.source < crossing.target < len(shape.stages):
        raise ScheduleError(f"{who}: must lead from a stage to a later one of {len(shape.stages)}")
    source, target = shape.stages[crossing.source], shape.stages[crossing.target]
    if not crossing.batched and source.copies != target.copies:
        raise ScheduleError(
            f"{who}: {', '.join(crossing.values)} has no row a sample, so {source.copies} copies can't hand it to "
            f"{target.copies}; give both stages equally many copies, or cut elsewhere"
        )
    if crossing.backward_bytes and source.trained and not target.trained:
        raise ScheduleError(f"{who}: stage {crossing.source} awaits a gradient that stage {crossing.target} never has")


def _check_tie(tie: Tie, shape: StepShape) -> None:
    if not tie.stages or not all(0 <= stage < len(shape.stages) for stage in tie.stages):
        raise ScheduleError(f"tie {tie.name}: names stages {tie.stages} of {len(shape.stages)}")
    if not all(shape.stages[stage].trained for stage in tie.stages):
        raise ScheduleError(f"tie {tie.name}: not all of stages {tie.stages} are trained; leave out a frozen tie")
