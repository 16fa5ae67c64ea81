"""The options of an optimizer that servers step with: as they begin with them, and as they are told of changes."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradtide.store import Store, update
from gradtide.store.rules.updates import is_elementwise, plain_argument
from gradtide.sync.job import Job
from gradtide.sync.servers.lodging import Lodging
from gradtide.sync.trained import Trained

__all__ = ["ToldOptions", "why_servers_cannot_step"]

_NOT_ARGUMENTS = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})

_KEEPS_SCALARS = ("NAdam", "ASGD")  # in the default dtype; others keep a count in it, which is exact


class ToldOptions:
    """What the servers know of the options; the first worker tells them what changed."""

    def __init__(self, store: Store, job: Job, lodging: Lodging, *, in_rounds: bool) -> None:
        self._store, self._job, self._lodging, self._in_rounds = store, job, lodging, in_rounds
        self._changed = set[str]()
        self._known: dict[str, dict[str, Any]] = {}  # what was told, by parameter, also of those that are frozen now
        self.took_over = False  # this worker has become the first one

    def follow(self, trained: Trained) -> None:
        """Other parameters are trained from now on. Those that were before have the options that were told last."""
        self._trained = trained
        self._told = [self._known.get(name, options) for name, options in zip(trained.names, self._read(), strict=True)]
        self._note()

    def know_nothing(self) -> None:
        """This worker comes later, and does not know what servers were told: should it be the first, it says all."""
        self._told = [{} for _ in self._told]
        self._known.clear()

    def _note(self) -> None:
        self._known.update(zip(self._trained.names, self._told, strict=True))

    def rule(self, key: str) -> Any:
        """What a parameter's key begins with."""
        options = self._told[self._trained.names.index(self._lodging.name(key))]
        return update(type(self._trained.optimizer).__name__, **options)

    @property
    def outdated(self) -> bool:
        return self._read() != self._told

    def tell(self) -> None:
        """What a schedule of learning rates, or the user, changed counts from the round of this step on."""
        options = self._read()
        for old, new in zip(self._told, options, strict=True):
            self._changed.update(k for k, v in new.items() if old.get(k) != v)
        if options == self._told and not self.took_over:
            return
        if self._tells:  # who has just become the first says all again: the one before may have left early
            again = self._changed if self.took_over else set[str]()
            for name, old, new in zip(self._trained.names, self._told, options, strict=True):
                changes = {k: v for k, v in new.items() if old.get(k) != v or k in again}
                if changes:
                    from_round = self._store.step if self._in_rounds else 0
                    self._store.configure(self._lodging.key(name), from_round=from_round, **changes)
            self.took_over = False
        self._told = options
        self._note()

    @property
    def _tells(self) -> bool:
        """The second worker does, too, where the first may die before it has told."""
        return self._job.rank == 0 or (self._job.rank == 1 and self._in_rounds and self._job.elastic is not None)

    def _read(self) -> list[dict[str, Any]]:
        groups, kind = self._trained.groups, type(self._trained.optimizer)
        arguments = [_arguments(kind, group) for group in groups]
        return [arguments[group] for group in self._trained.group_of()]


def why_servers_cannot_step(trained: Trained) -> str:
    """Nothing if they can."""
    if trained.why_workers_step:
        return "norm clipping" if trained.clip_norm is not None else trained.why_workers_step
    if found := _find_overlap(trained):
        return f"{found[0]} and {found[1]} lie in the same memory"
    if not is_elementwise(trained.optimizer):
        return f"{type(trained.optimizer).__name__}, which is not elementwise"
    if type(trained.optimizer).__name__ in _KEEPS_SCALARS and torch.get_default_dtype() is torch.float64:
        return f"{type(trained.optimizer).__name__}, of whose state some is float64 by default here, and float32 there"
    return ""


def _find_overlap(trained: Trained) -> tuple[str, str] | None:
    """What a step of one would change of the other, if that were not a key of its own on the servers."""
    named = [*zip(trained.names, trained.parameters, strict=True), *trained.buffers]
    spans = sorted((*_span(tensor), name) for name, tensor in named if tensor.numel() and not tensor.is_sparse)
    end, last = 0, ""
    for begin, until, name in spans:
        if begin < end:
            return last, name
        end, last = until, name
    return None


def _span(tensor: Tensor) -> tuple[int, int]:
    """From the first byte to the last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _arguments(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer is made with; schedulers keep notes of their own among a group's options."""
    known = inspect.signature(kind).parameters
    return {k: plain_argument(k, v) for k, v in group.items() if k in known and k not in _NOT_ARGUMENTS}
