"""What each device did, and when: an event a task, for whoever listens."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gradtide.events import TaskDone
from gradtide.schedule.step.model import Task

if TYPE_CHECKING:
    from gradtide.parallel.split.run.walk import DeviceSetting

__all__ = ["watch_tasks"]


def watch_tasks(setting: "DeviceSetting", tasks: Iterable[Task], take: Callable[[Task], None]) -> None:
    """Takes every task, and tells of it. What is received within a task is awaited there: that is told beside it."""
    communicator: Any = setting.communicator
    receive, waited, received = communicator.receive, 0.0, list[int]()

    def timed(source: int, tag: int) -> Any:
        nonlocal waited
        begin = time.perf_counter()
        try:
            return receive(source, tag)
        finally:
            waited += time.perf_counter() - begin
            received.append(tag)

    communicator.receive = timed
    try:
        for task in tasks:
            waited, received, begin = 0.0, [], time.perf_counter()
            take(task)
            end = time.perf_counter()
            about = setting.device, task.kind, task.stage, task.micro
            sent = task.id if task.kind == "message" and task.devices[0] == setting.device else -1
            setting.emit(TaskDone(*about, begin, end, waited, sent, received))
    finally:
        del communicator.receive
