"""Where the job stands, from those who know to those who have come: the optimizer's options and state, the position."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.sync.job import Job
from gradtide.sync.ways import Trained

__all__ = ["Snapshot", "share_state"]

_PLAIN = bool | int | float | str | None


class _Scalar(msgspec.Struct, frozen=True, tag=True):
    """A piece of state that is a plain value."""

    value: bool | int | float | str | None


class _Shape(msgspec.Struct, frozen=True, tag=True):
    """A piece of state that is a tensor; its elements follow."""

    dtype: str
    shape: tuple[int, ...]


class _Standing(msgspec.Struct, frozen=True):
    """What rank 0 tells."""

    batches: int  # whose steps are finished
    options: list[dict[str, bool | int | float | str | list[float] | None]]  # a group each
    state: list[dict[str, _Shape | _Scalar]]  # a parameter each


def share_state(trained: Trained, job: Job, group: Group) -> None:
    """Rank 0's optimizer state becomes everybody's, and a newcomer learns how far the others are."""
    own = _tell(trained, job)
    length = torch.tensor([len(own)])
    group.broadcast(length)
    text = torch.zeros(int(length), dtype=torch.uint8)
    if group.rank == 0:
        text.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    group.broadcast(text)
    told = msgspec.json.decode(bytes(text.tolist()), type=_Standing)
    if group.rank and job.elastic is not None and job.elastic.newcomer:
        job.behind = told.batches
        for mine, theirs in zip(trained.optimizer.param_groups, told.options, strict=True):
            mine.update({k: tuple(v) if isinstance(mine.get(k), tuple) else v for k, v in theirs.items()})  # type: ignore[arg-type]
    elif group.rank:
        job.undone = job.batches > told.batches  # a death may find one of us before a step's end, another after it
    for parameter, named in zip(trained.parameters, told.state, strict=True):
        _share_one(trained.optimizer.state, parameter, named, group)


def _share_one(states: Any, parameter: Tensor, named: dict[str, _Shape | _Scalar], group: Group) -> None:
    if not named:
        states.pop(parameter, None)
        return
    mine = states[parameter] if group.rank == 0 else {}
    for name, what in named.items():
        if isinstance(what, _Scalar):
            mine[name] = what.value
            continue
        if group.rank:
            mine[name] = torch.zeros(what.shape, dtype=getattr(torch, what.dtype))
        group.broadcast(mine[name])
    states[parameter] = mine


def _tell(trained: Trained, job: Job) -> bytes:
    options = [{k: v for k, v in g.items() if _is_plain(v)} for g in trained.optimizer.param_groups]
    state = [
        {name: _describe(value) for name, value in trained.optimizer.state.get(p, {}).items()}
        for p in trained.parameters
    ]
    return msgspec.json.encode(_Standing(job.batches - job.undone, options, state))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and all(isinstance(v, float) for v in value))


def _describe(value: Any) -> _Shape | _Scalar:
    if isinstance(value, Tensor):
        return _Shape(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return _Scalar(value)


class Snapshot:
    """The parameters and the optimizer's state of the last finished step, in this process's own memory."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._values = [parameter.detach().clone() for parameter in trained.parameters]
        self._states = [_copied(trained.optimizer.state.get(p, {})) for p in trained.parameters]

    def restore(self) -> None:
        states = self._trained.optimizer.state
        for parameter, value, state in zip(self._trained.parameters, self._values, self._states, strict=True):
            parameter.data = value.clone()
            parameter.grad = None
            states.pop(parameter, None)
            if state:
                states[parameter] = _copied(state)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
