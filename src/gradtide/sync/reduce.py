"""Collectives: all-reduce the buckets while backward goes on, then every rank takes the same step."""

from typing import Any

import torch

from gradtide.collective import Group
from gradtide.collective.choose import Strategy
from gradtide.errors import ConfigError
from gradtide.events import Emit, GradientsSynchronised, Waiting
from gradtide.handle import Handle
from gradtide.sync.alone import take_step
from gradtide.sync.buckets import Bucket, Buckets
from gradtide.sync.ways import Trained

__all__ = ["Reduce"]


class Reduce:
    """The way of ranks that hold a copy of the parameters each."""

    def __init__(
        self,
        trained: Trained,
        group: Group,
        strategy: Strategy | None,
        reason: str,
        emit: Emit,
        *,
        overlap: bool = True,
    ) -> None:
        self.reason, self._emit = reason, emit
        self._trained, self._group, self._strategy = trained, group, strategy
        self._handles: list[Handle[Any]] = []
        self._synchronised = self._stepping = False
        self._used = torch.zeros(len(trained.parameters), dtype=torch.uint8)
        with torch.no_grad():
            for parameter in trained.parameters:
                group.broadcast(parameter.data)
        self._buckets = Buckets(trained.parameters, trained.names, group.shared_tensor, self._leave, overlap=overlap)
        if strategy is not None:
            for bucket in self._buckets.all:  # one that does not fit is said now, not in backward
                group.schedule(strategy, bucket.memory.numel() * bucket.memory.element_size())
        self._hook = trained.optimizer.register_step_pre_hook(self._check_step)

    def ready(self, index: int, weight: float) -> None:
        self._buckets.put(index, weight)

    def _leave(self, bucket: Bucket) -> None:
        self._handles.append(self._group.all_reduce(bucket.memory, strategy=self._strategy, async_op=True))

    def synchronise(self, weight: float) -> None:
        if self._synchronised:
            return
        self._buckets.put_the_rest(weight)
        for index, parameter in enumerate(self._trained.parameters):
            self._used[index] = parameter.grad is not None
        self._handles.append(self._group.all_reduce(self._used, "max", async_op=True))
        self._emit(Waiting())
        for handle in self._handles:
            handle.wait()
        self._handles.clear()
        self._emit(GradientsSynchronised(sum(bucket.memory.nbytes for bucket in self._buckets.all)))
        used = self._used.tolist()
        for bucket in self._buckets.all:
            for index, view in zip(bucket.indices, bucket.views, strict=True):
                # A parameter that no rank used keeps None, as in plain PyTorch.
                self._trained.parameters[index].grad = view if used[index] else None
        self._synchronised = True

    def step(self, weight: float) -> None:
        self.synchronise(weight)
        self._stepping = True
        try:
            take_step(self._trained)
        finally:
            self._stepping = False
        self._synchronised = False
        self._buckets.restart()

    def _check_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if not self._stepping:
            raise ConfigError("call model.step() instead of optimizer.step(): it synchronises the gradients first")

    def close(self) -> None:
        self._hook.remove()
        for parameter in self._trained.parameters:
            parameter.grad = None  # it may be a view of a bucket
