"""When a backward begins and ends, which gradients it gave, and what each of them counts.

Each backward has a weight of its own: what this worker's part of the batch counts in the whole one. A gradient that
stays for several of them (`no_sync`) is kept in the measure of the last: before another is added to it, it is rescaled.

The end is a callback of autograd's engine. It is asked for by a hook on the wrapper's outputs, because a parameter's
own hook may run in the inner backward of a reentrant checkpoint, which ends earlier.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.sync.watching.own_gradient import OwnGradient, plain_gradient

__all__ = ["BackwardHooks"]

_queue_callback: Callable[[Callable[[], None]], None]
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class BackwardHooks:
    """Hooks on the parameters of one worker's model, and on what its wrapper returns."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        weight_now: Callable[[], float],
        on_gradient: Callable[[int, float], None],
        on_end: Callable[[bool], None],
        on_adding: Callable[[int, Tensor | None], None],
        on_taken: Callable[[int], None],
    ) -> None:
        self._parameters, self._weight_now = parameters, weight_now
        self._on_gradient, self._on_end, self._on_adding = on_gradient, on_end, on_adding
        self._on_taken = on_taken  # a hook of the user's has taken a gradient away, within backward
        self._kept: list[float | None] = [None] * len(parameters)  # the measure of each gradient that is there
        self._task: int | None = None  # autograd's number for the backward that is under way
        self._reached = set[int]()  # to which it has given a gradient
        self._added = False  # whether it has added to one that was there
        self._added_to: dict[int, tuple[int, int]] = {}  # those that have hooks of the user's, as they were before
        self._versions: dict[int, tuple[int, int]] = {}  # of gradients that stay here, as backward left them
        self._changed = set[int]()  # those that somebody changed before the next backward added to them
        self._nodes: list[Any] = []  # gone if nobody holds them
        self._hooks: list[Any] = []
        for index, parameter in enumerate(parameters):
            with _asking(parameter):
                self._nodes.append(_accumulator(parameter))
                self._hooks.append(self._nodes[-1].register_prehook(_weakly(self._before, index)))
                self._hooks.append(parameter.register_post_accumulate_grad_hook(_weakly(self._after, index)))

    def watch(self, outputs: Any) -> None:
        """What the wrapper's forward returns: a backward that comes through it is seen from its beginning."""
        self._task = None
        for output in _tensors(outputs):
            if output.requires_grad and not output.is_leaf:
                output.register_hook(self._begun)

    @property
    def unfinished(self) -> bool:
        """Whether a backward has given gradients and never came to its end."""
        return bool(self._reached)

    @property
    def accumulating(self) -> bool:
        """Whether a gradient is there that only this worker has."""
        return bool(self.own_gradients())

    def own_gradients(self) -> list[int]:
        """Those that only this worker has."""
        return [index for index in self._versions if self._parameters[index].grad is not None]

    @property
    def holding(self) -> bool:
        """Whether a gradient is there that has a measure: this worker's, or that of all (unless it was zeroed)."""
        kept = [p.grad for p, measure in zip(self._parameters, self._kept, strict=True) if measure is not None]
        return self.accumulating or any(gradient is not None and _is_some(gradient) for gradient in kept)

    def check_unchanged(self, names: Sequence[str]) -> None:
        """Before gradients leave that stayed here: an edit of a part is not an edit of the whole."""
        for index in self._versions:
            gradient = plain_gradient(self._parameters[index])
            if index in self._changed or (gradient is not None and self._is_changed(index, gradient)):
                raise ConfigError(
                    f"the gradient of {names[index]} was changed before it was synchronised; take the last backward "
                    "before a step outside of no_sync(), and change gradients after it"
                )

    def _is_changed(self, index: int, gradient: Tensor) -> bool:
        return index in self._versions and self._versions[index] != (id(gradient), gradient._version)

    def weights(self) -> list[float]:
        """What each gradient, as it is now, counts."""
        now = self._weight_now()
        pairs = zip(self._kept, self._parameters, strict=True)
        return [now if kept is None or parameter.grad is None else kept for kept, parameter in pairs]

    def synchronised(self, part: float) -> None:
        """Every gradient is that of all workers now. Each of them has an equal part in it, whatever is added to it."""
        self._kept = [None if parameter.grad is None else part for parameter in self._parameters]
        self._reached.clear()
        self._versions.clear()
        self._changed.clear()

    def take_over(self, old: "BackwardHooks") -> None:
        """What was known of gradients that are still there, when other parameters are trained from now on."""
        places = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        for before, parameter in enumerate(old._parameters):
            index = places.get(id(parameter))
            if index is not None:
                self._kept[index] = old._kept[before]
                if before in old._versions:
                    self._versions[index] = old._versions[before]
                if before in old._changed:
                    self._changed.add(index)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._nodes.clear()  # they know the shapes that parameters had: torch makes them anew

    def _begun(self, gradient: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            _queue_callback(self._ended)

    def _ended(self) -> None:
        self._task = None
        if self._reached:
            self._look_again()
            self._reached.clear()
            self._added_to.clear()
            added, self._added = self._added, False
            self._on_end(added)

    def _look_again(self) -> None:
        """A hook of the user's that came after ours may have changed a gradient, or put another in its place."""
        for index in self._reached:
            gradient, weight = self._parameters[index].grad, self._kept[index]
            if gradient is not None and weight is not None and self._is_changed(index, gradient):
                self._versions[index] = (id(gradient), gradient._version)
                if index in self._added_to:
                    self._changed.add(index)
                self._on_gradient(index, weight)

    def _is_hooked(self, index: int, gradient: Tensor) -> bool:
        """Whether a hook of the user's changed what was there before, and not only what this backward adds to it: on a
        worker that adds nothing it is not called. (Adding counts as one change, but for sparse ones and graphs.)"""
        if index not in self._added_to or torch.is_grad_enabled() or gradient.is_sparse:
            return False
        return self._added_to[index] != (id(gradient), gradient._version - 1)

    def _before(self, index: int, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if isinstance(self._parameters[index].grad, OwnGradient):
            self._parameters[index].grad = plain_gradient(self._parameters[index])
        kept, held = self._kept[index], self._parameters[index].grad
        self._on_adding(index, held)
        self._added |= held is not None
        if kept is None or held is None:
            self._kept[index] = None  # what was there is gone, and its measure with it
            return None
        if self._is_changed(index, held):
            self._changed.add(index)
        weight = self._weight_now()
        if weight not in (kept, 0.0):
            with torch.no_grad():
                held.mul_(kept / weight)
            self._kept[index] = weight
        if len(self._parameters[index]._post_accumulate_grad_hooks) > 1 and _is_some(held):  # not only ours
            self._added_to[index] = (id(held), held._version)
        if weight == 0.0 != kept:  # counts nothing: what is there keeps its measure
            return tuple(torch.zeros_like(gradient) for gradient in gradients)
        return None

    def _after(self, index: int, parameter: Tensor) -> None:
        weight, kept = self._weight_now(), self._kept[index]
        if kept is None or weight != 0.0:
            self._kept[index] = kept = weight
        self._reached.add(index)
        gradient = parameter.grad
        if gradient is None:
            self._kept[index] = None
            self._on_taken(index)
            return
        if self._is_hooked(index, gradient):
            self._changed.add(index)
        self._versions[index] = (id(gradient), gradient._version)
        if self._task is None:  # a backward that did not come through the wrapper's outputs
            self._task = torch._C._current_graph_task_id()
            _queue_callback(self._ended)
        self._on_gradient(index, kept)


def _weakly(method: Callable[..., Any], index: int) -> Callable[..., Any]:
    """A parameter must not keep what watches it: through autograd's own objects nobody finds the cycle."""
    known = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        found = known()
        return None if found is None else found(index, *arguments)

    return call


@contextlib.contextmanager
def _asking(parameter: nn.Parameter) -> Iterator[None]:
    """It may have been frozen since its backward: it is watched as those are that may be thawed."""
    asked = parameter.requires_grad
    parameter.requires_grad_(True)
    yield
    parameter.requires_grad_(asked)


def _accumulator(parameter: nn.Parameter) -> Any:
    """The node of autograd that adds to this parameter's gradient."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _is_some(gradient: Tensor) -> bool:
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).any())


def _tensors(outputs: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(outputs)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for leaf in leaves:  # an object of somebody's own: a dataclass, or what transformers return
        if not isinstance(leaf, Tensor) and hasattr(leaf, "__dict__"):
            found += [value for value in pytree.tree_leaves(vars(leaf)) if isinstance(value, Tensor)]
    return found
