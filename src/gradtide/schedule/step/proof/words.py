"""A task in words."""

from gradtide.schedule.step.model import Task

__all__ = ["who"]


def who(task: Task) -> str:
    """ "task 7 (forward of stage 1, micro-batch 0, on device 2)": what opens every error about it."""
    place = f" of stage {task.stage}" if task.stage >= 0 else ""
    place += f" segment {task.segment}" if task.segment >= 0 else ""
    when = f", micro-batch {task.micro}" if task.micro >= 0 else ""
    if task.kind == "message":
        where = f"from device {task.devices[0]} to {task.devices[-1]}"
    else:
        where = f"on device {', '.join(map(str, task.devices))}"
    return f"task {task.id} ({task.kind}{' back' if task.back else ''}{place}{when}, {where})"
