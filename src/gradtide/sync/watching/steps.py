"""Hooks around the steps of a model's optimizers, and one that finds out about an optimizer that nobody told of."""

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["StepHooks"]

Seen = Callable[[torch.optim.Optimizer], None]
_listening: "list[weakref.ReferenceType[StepHooks]]" = []


@functools.cache
def _listen_everywhere() -> None:
    """Once a process, and for good: Python may end a StepHooks within any step, while torch goes through its hooks."""

    def see(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        for known in tuple(_listening):
            found = known()
            if found is not None:
                found._see(optimizer)

    register_optimizer_step_pre_hook(see)


class StepHooks:
    """`before` and `after` hear of each step of the optimizers that are known, `strange` of the others', which may have
    parameters of the model. What steps within a known one's step is a part of it, and nobody hears of that."""

    def __init__(self, before: Seen, after: Seen, strange: Seen) -> None:
        self._before, self._after, self._strange = before, after, strange
        self._known: Sequence[torch.optim.Optimizer] = ()
        self._within: torch.optim.Optimizer | None = None  # whose step is under way
        self._hooks: list[Any] = []
        _listening[:] = [known for known in _listening if known() is not None]
        self._own = weakref.ref(self)
        _listening.append(self._own)
        _listen_everywhere()

    def know(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """From now on these are the known ones. One whose step is about to begin calls the hooks that it gets here."""
        for hook in self._hooks:
            hook.remove()
        self._known, self._hooks = optimizers, []

        def begin(optimizer: Any, arguments: Any, options: Any) -> None:
            self._before(optimizer)
            self._within = optimizer

        def end(optimizer: Any, arguments: Any, options: Any) -> None:
            self._within = None if self._within is optimizer else self._within
            self._after(optimizer)

        begin.of_gradtide = end.of_gradtide = True  # type: ignore[attr-defined]
        for optimizer in optimizers:
            self._hooks += [optimizer.register_step_pre_hook(begin), optimizer.register_step_post_hook(end)]

    def forget_failed(self) -> None:
        """A forward begins, in a closure or after a step: one that ended in an error did not say so."""
        if self._within is not None and not _is_running(self._within):
            self._within = None

    def remove(self) -> None:
        self.know(())
        if self._own in _listening:
            _listening.remove(self._own)

    def _see(self, optimizer: torch.optim.Optimizer) -> None:
        if self._within is None and not any(known is optimizer for known in self._known):
            self._strange(optimizer)


def _is_running(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a method of it, such as a step that calls a closure, is on the stack of this thread."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_locals.get("self") is optimizer:
            return True
    return False
