"""A step that is lost with a worker: what it began with, and, until its batches come again, what stayed.

In between the loop's body runs to its end as if nothing had been; what it does on this worker never was: to the model,
to torch's schedulers of its optimizers, and to model.state. What counts steps in another way is found out when the step
is taken again with other options than before, and refused.
"""

import copy
import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from gradtide.errors import ConfigError
from gradtide.sync.job import Job
from gradtide.sync.shared.way import SharedParameters
from gradtide.sync.state import LastStep, plain_options
from gradtide.sync.trained import Trained
from gradtide.sync.ways import Way

__all__ = ["KeptValues", "LostStep", "StepBegin"]


class KeptValues:
    """Parameters and buffers as they are now, to be put back."""

    def __init__(self, trained: Trained) -> None:
        self._copies = [(p, p.detach().clone()) for _, p in trained.everything] + _copies(trained)

    def put_back(self) -> None:
        _put_back(self._copies)

    def is_now(self) -> bool:
        """Whether they are still the same."""
        return all(torch.equal(tensor, value) for tensor, value in self._copies)


class StepBegin:
    """Noted at a step's first forward, which changes buffers, in a job that may lose workers."""

    def __init__(self, trained: Trained) -> None:
        self._trained, self._buffers = trained, _copies(trained)
        self._options = [plain_options(group) for group in trained.groups]

    def restore(self) -> None:
        _put_back(self._buffers)

    def check_options(self) -> None:
        """Where the step was lost before it was tried."""
        _compare(self._options, [plain_options(group) for group in self._trained.groups])


class LostStep:
    """Made where the next members have begun alike, from the last step that stayed."""

    def __init__(self, trained: Trained, way: Way, job: Job) -> None:
        self._trained, self._way, self._buffers, self._job = trained, way, _copies(trained), job
        self._batches, self._script = job.batches, copy.deepcopy(job.state)
        self._options = [plain_options(group) for group in trained.groups]
        self._schedulers = [(one, copy.deepcopy(one.state_dict())) for one in _schedulers_of(trained)]
        self._values = None if isinstance(way, SharedParameters) else LastStep(trained)

    def take_back(self) -> None:
        _put_back(self._buffers)
        if isinstance(self._way, SharedParameters):
            self._way.forget_edits()
        elif self._values is not None:
            self._values.restore()
        self._job.take_state(self._script)
        for scheduler, state in self._schedulers:
            scheduler.load_state_dict(copy.deepcopy(state))
        scheduled = {id(group) for one, _ in self._schedulers for group in one.optimizer.param_groups}
        for group, options in zip(self._trained.groups, self._options, strict=True):
            if id(group) in scheduled:
                _put_back_options(group, options)

    def check_again(self) -> None:
        """Right before the step is taken again: it must be as it was when it was tried first."""
        if self._job.batches != self._batches:
            raise ConfigError(
                f"a step was lost with a worker after batch number {self._batches} of gradtide.shard, and is taken "
                f"again after number {self._job.batches}: let batches.place, of batches = gradtide.shard(loader), tell "
                "a step's last batch"
            )
        _compare(self._options, [plain_options(group) for group in self._trained.groups])
        for scheduler, state in self._schedulers:
            if repr(scheduler.state_dict()) != repr(state):
                raise ConfigError(f"a {type(scheduler).__name__} {_COUNTS}")


_SCHEDULED = ("lr", "momentum", "betas")  # what torch's schedulers set
_COUNTS = (
    "counts what was lost with a worker: the batches of that step come again; let torch's schedulers step after "
    "model.step(), and what else sets options count as batches.place does, or under `if model.step():`"
)


def _schedulers_of(trained: Trained) -> list[LRScheduler]:
    """An optimizer does not know its schedulers, and nobody has to tell us; a worker's death may take its time. A weak
    proxy whose object has gone may not be asked what it is."""
    found: list[LRScheduler] = [one for one in gc.get_objects() if issubclass(type(one), LRScheduler)]
    return [one for one in found if any(one.optimizer is optimizer for optimizer in trained.optimizers)]


def _put_back_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    for name in _SCHEDULED:
        if isinstance(group.get(name), Tensor):
            group[name].fill_(options[name])
        elif name in group:
            value = options[name]
            group[name] = tuple(value) if isinstance(value, list) else value


def _compare(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> None:
    for number, (then, group) in enumerate(zip(before, now, strict=True)):
        for name, value in then.items():
            if group.get(name) != value:
                raise ConfigError(
                    f"{name} of group {number} was {value} when this step was taken first, and is {group.get(name)} "
                    f"where it is taken again; what sets it {_COUNTS}"
                )


def _copies(trained: Trained) -> list[tuple[Tensor, Tensor]]:
    return [(buffer, buffer.clone()) for _, buffer in trained.buffers]


def _put_back(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    for buffer, value in copies:
        buffer.detach().copy_(value)
