"""Looks whether a loss that is not one of torch's is what it is taken for: the loss of a part that of its two halves.

Of parts of one sample, where the user says what the loss is: the loss of what the model gave, twice, with the targets
of two parts. A net, and no proof: at the first three steps, and at every hundredth.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.devices.loss_terms import LossFn, Terms
from gradtide.parallel.devices.nested import cut_rows, length

__all__ = ["Halves", "refuse_foreign", "refuse_random"]

_FIRST, _EVERY = 3, 100
_ONE_AT_A_TIME = threading.Lock()  # devices compare in their threads, and torch's generator is put back afterwards


class Halves:
    """The comparison of one loss, over the steps of a run."""

    def __init__(self, terms: Terms) -> None:
        self._terms, self._steps = terms, 0
        self._split = self._due = self._compared = False
        self._targets: Sequence[Tensor] = ()  # of all parts

    def begin(self, targets: Sequence[Tensor], *, split: bool) -> None:
        """Before a step, with the targets of every part that counts. `split`: they are not the whole batch."""
        self._split, self._targets = split, targets
        self._steps += split
        self._due = split and not self._terms.known and (self._steps <= _FIRST or self._steps % _EVERY == 0)
        if not self._due or not targets:
            return
        if any(length(part) > 1 for part in targets):
            self._compared = True
        elif not self._compared and not self._terms.said:
            raise ConfigError(f"with one sample a part {_UNSEEN}; {_ADVICE}")

    def watch(self, outputs: Any, targets: Tensor) -> Callable[[LossFn, Tensor], None] | None:
        """Before a loss is computed: what is to be done with it afterwards."""
        if self._split and self._terms.elementwise and _differ(outputs, targets):
            raise ConfigError(
                f"outputs are {tuple(outputs.shape)} and targets {tuple(targets.shape)}: the loss would pair every "
                "output with every target of the batch, which parts of a batch can't; give both the same shape"
            )
        alone = length(targets) == 1
        if not self._due or not length(targets) or (alone and not self._terms.said):
            return None
        before = torch.get_rng_state()

        def compare(fn: LossFn, loss: Tensor) -> None:
            if self._terms.said and not torch.equal(torch.get_rng_state(), before):
                return  # it draws random numbers, so two calls can't be compared; the user says what it is
            if alone:
                self._compare_twice(fn, outputs, targets)
            else:
                self._compare(fn, outputs, targets, loss)

        return compare

    def _compare_twice(self, fn: LossFn, outputs: Any, targets: Tensor) -> None:
        """One sample alone: as if the model had given the same for another part's target."""
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.dim()]
        if not leaves or any(len(leaf) != 1 for leaf in leaves) or not isinstance(targets, Tensor):
            return
        others = [part[:1].to(targets.device) for part in self._targets if part.shape[1:] == targets.shape[1:]]
        other = next((one for one in others if not torch.equal(one, targets)), targets)
        twice = pytree.tree_map_only(
            Tensor, lambda leaf: torch.cat([leaf] * 2).detach() if leaf.dim() else leaf, outputs
        )
        pair = torch.cat([targets, other])
        with torch.no_grad():
            try:
                whole = fn(twice, pair)
            except Exception:  # a function of the user's own may be made for one sample alone
                return
        if isinstance(whole, Tensor) and whole.numel() == 1:
            self._compare(fn, twice, pair, whole)

    def _compare(self, fn: LossFn, outputs: Any, targets: Tensor, loss: Tensor) -> None:
        whole, halves = float(loss.detach()), _cut(outputs, targets, exactly=self._terms.said)
        if not math.isfinite(whole) or (not halves and self._terms.said):
            return  # fit ends for the first; where outputs don't go by samples, the user is believed
        losses = self._losses(fn, halves)
        if not losses:
            raise ConfigError(f"{_UNSEEN}: it can't be computed for one half of the samples alone; {_ADVICE}")
        made = self._made_of(losses, [targets for _, targets in halves])
        tolerance = _tolerance(loss, outputs) * max(map(abs, [whole, *losses])) + 100 * torch.finfo(loss.dtype).eps
        if not abs(whole - made) <= tolerance:
            taken = "a sum" if self._terms.is_sum else "a mean over samples"
            taken = "what loss_terms says" if self._terms.said else taken
            raise ConfigError(
                f"the loss of {length(targets)} samples is {whole:.6g}, but its two halves make {made:.6g}: it is not "
                f"{taken}, so parts of a batch would not make up the batch; {_ADVICE}"
            )

    def _losses(self, fn: LossFn, halves: Sequence[tuple[Any, Tensor]]) -> list[float]:
        """Of each half; nothing where it can't be computed. Neither gradients nor random numbers notice."""
        leaves = [leaf for leaf in pytree.tree_leaves(halves) if isinstance(leaf, Tensor)]
        devices = {leaf.device for leaf in leaves if leaf.device.type == "cuda"}
        with _ONE_AT_A_TIME, torch.random.fork_rng(devices), torch.no_grad():
            try:
                return [float(fn(outputs, targets)) for outputs, targets in halves]
            except Exception:  # whatever a function of the user's own may raise
                return []

    def _made_of(self, losses: Sequence[float], targets: Sequence[Tensor]) -> float:
        if self._terms.is_sum:
            return sum(losses)
        counts = [float((self._terms.count or length)(part)) for part in targets]
        weighed = [loss * count for loss, count in zip(losses, counts, strict=True) if count]
        return sum(weighed) / sum(counts) if sum(counts) else math.nan


def refuse_foreign(outputs: Any, loss: Tensor) -> None:
    """Refuses a loss that would give a gradient to anything but the outputs: only some devices compute it."""
    known = {id(leaf) for leaf in pytree.tree_leaves(outputs)}
    left, seen = [loss.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # of the nodes at a graph's ends
        if variable is not None and id(variable) not in known:
            raise ConfigError(
                "the loss reads a tensor that asks for a gradient and is none of the model's outputs, such as its "
                "parameters, which are on the devices: use the optimizer's weight_decay, or let the model return it"
            )
        left += [one for one, _ in node.next_functions]


def refuse_random(fn: LossFn, outputs: Any, targets: Tensor, loss: Tensor) -> None:
    """Computes a loss a second time, and refuses one that gives something else then."""
    with torch.no_grad():
        again = fn(outputs, targets)
    difference = abs(float(again) - float(loss.detach()))
    if difference > _tolerance(loss, outputs) * abs(float(again)):
        raise ConfigError(
            "the loss gives something else every time it is computed of the same, so that parts of a batch and shards "
            "would not have the same one; draw random numbers before the step, and keep nothing from call to call"
        )


_UNSEEN = "it can't be seen whether the loss, which is none of torch's, is a mean over samples"
_ADVICE = (
    "say loss_terms= (of a split model: count=), a function from targets to the number of terms that it is a mean over "
    '(or "sum", if it is one), or train on one device and one worker'
)


def _cut(outputs: Any, targets: Tensor, *, exactly: bool) -> list[tuple[Any, Tensor]]:
    """The halves of outputs and targets; none if outputs don't go by samples. (They may be flat: so many a sample.)"""
    samples = length(targets)
    middle = samples // 2
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not leaves or any(len(leaf) != samples if exactly else len(leaf) % samples for leaf in leaves):
        return []

    def half(first: bool) -> Any:
        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.dim():
                return leaf
            at = middle * (len(leaf) // samples)
            return leaf.detach()[:at] if first else leaf.detach()[at:]

        return pytree.tree_map(cut, outputs)

    return [(half(True), cut_rows(targets, 0, middle)), (half(False), cut_rows(targets, middle, samples))]


def _differ(outputs: Any, targets: Any) -> bool:
    """Whether they are tensors of different numbers of dimensions."""
    return isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.dim() != targets.dim()


def _tolerance(loss: Tensor, outputs: Any) -> float:
    """Relative: 4e-10 in float64, 7e-5 in float32, 0.05 in bfloat16."""
    dtypes = {loss.dtype, *(leaf.dtype for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))}
    return float(max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point) ** 0.6)
