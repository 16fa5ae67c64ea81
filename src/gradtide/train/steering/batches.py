"""What a user calls a batch, as inputs and targets: a pair, a triple with sample weights, or a dict that names them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from gradtide.errors import DataError
from gradtide.parallel.devices.nested import length

__all__ = ["as_batch", "is_batches", "is_weighted", "with_targets"]

_NAMES = ("inputs", "targets", "weights")


def as_batch(batch: Any) -> tuple[Any, Any, bool]:
    """Inputs, targets, and whether these are pairs of targets and weights."""
    if isinstance(batch, Mapping):
        if not {"inputs", "targets"} <= set(batch) <= set(_NAMES):
            raise DataError(
                f"a batch that is a dict names 'inputs' and 'targets' (and 'weights'), but this has {list(batch)}; "
                "give (inputs, targets), of which inputs may be that dict"
            )
        parts = [batch[name] for name in _NAMES if name in batch]
    elif isinstance(batch, tuple | list) and len(batch) in (2, 3):
        parts = list(batch)
    else:
        found = f"{len(batch)} things" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise DataError(
            f"each batch must be a pair of tensors (inputs, targets), or (inputs, targets, weights), not {found}; "
            "give the DataLoader such a collate_fn"
        )
    tensors = [pytree.tree_map(_as_tensor, part) for part in parts]
    if len(tensors) == 2:
        return tensors[0], tensors[1], False
    weights = tensors[2]
    if not isinstance(weights, Tensor) or weights.dim() != 1 or length(weights) != length(tensors[1]):
        raise DataError("sample weights are one number a sample: give a tensor as long as the targets")
    if not bool((weights >= 0).all()):
        raise DataError("a sample weight is negative, or no number; they must be 0 or more")
    return tensors[0], (tensors[1], weights.double()), True


def _as_tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(leaf))
    raise DataError(
        f"a batch must be of tensors or arrays of numbers (or dicts, tuples and lists of them), and has a "
        f"{type(leaf).__name__}; convert it, in the DataLoader's collate_fn, say"
    )


def is_batches(data: Any) -> bool:
    """Whether a list is one of batches, and not a batch itself."""
    return isinstance(data, list) and bool(data) and all(isinstance(one, tuple | list | Mapping) for one in data)


def is_weighted(data: Dataset[Any]) -> bool:
    """Whether the samples of a Dataset have weights: those of a TensorDataset of three."""
    return isinstance(data, TensorDataset) and len(data.tensors) == 3


def with_targets(data: Any) -> Any:
    """Inputs alone get targets that nobody looks at."""
    if isinstance(data, tuple | list) and len(data) == 1 and isinstance(data[0], Tensor | np.ndarray | Mapping):
        return with_targets(data[0])  # as a TensorDataset of inputs gives it
    if isinstance(data, Tensor | np.ndarray):
        return data, torch.zeros(len(data))
    if isinstance(data, Mapping) and not {"inputs", "targets"} <= set(data):
        inputs = pytree.tree_map(_as_tensor, dict(data))
        return inputs, torch.zeros(length(inputs))
    return data
