"""What units compute on their way: what each call of torch gives. By it is seen that samples are mixed where nothing of
that shows in what the unit makes, as with a capacity that this batch does not reach."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from gradtide.parallel.split.chain_values import run_unit
from gradtide.parallel.split.units import Unit

__all__ = ["ChainRun"]

# Their results have as many rows as the values say, or rows in an order that they say, whosesoever they are.
_PICKING = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique2", "repeat_interleave"}
_SORTING = {"sort", "argsort"}  # of whole numbers, as experts are: tokens are put together by them, and apart again
# They put such rows back to where they came from.
_PUTTING = {"__setitem__", "index_add", "index_put", "index_copy", "index_reduce", "scatter", "scatter_add"}
_PUTTING |= {"scatter_reduce", "masked_scatter", "with_items"}


class ChainRun:
    """A chain run unit by unit, with what the last unit computed on its way."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = dict(values)
        self.stopped = False  # not all values are such that the model is made for them
        self.calls: dict[tuple[int, str], Tensor] = {}  # by which call of the unit it was, and of what name
        self.picks = False  # the last unit picks rows, of which calls don't tell

    def go(self, unit: Unit) -> None:
        watch = _CallWatch()
        try:
            with watch:
                self.values |= run_unit(unit, self.values)
        except Exception:
            self.stopped = True
        self.calls = {(number, name): value for number, (name, value) in enumerate(watch.made)}
        self.picks = bool(watch.picked)


class _CallWatch(TorchFunctionMode):
    """Notes what calls of torch give while it is entered, but for picked rows and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Tensor]] = []
        self.picked: dict[int, Tensor] = {}  # by id; they are kept, so that no other one gets it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        name = str(getattr(func, "__name__", func)).partition(".")[0]
        name = name if name.startswith("__") else name.removesuffix("_")
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        picked = any(id(one) in self.picked for one in (read[:1] if name in _PUTTING else read))
        picked = picked or _picks(name, args, kwargs, read)
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, Tensor) and picked:
                self.picked[id(leaf)] = leaf
            elif isinstance(leaf, Tensor):
                self.made.append((name, leaf))
        return made


def _picks(name: str, args: Any, kwargs: Any, read: list[Tensor]) -> bool:
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name in _SORTING:
        return bool(read) and not read[0].is_floating_point()
    by_mask = name in ("__getitem__", "index") and any(one.dtype is torch.bool for one in read[1:])
    return by_mask or name in _PICKING
