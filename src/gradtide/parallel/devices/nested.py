"""Batches that are more than one tensor: dicts, tuples and lists of tensors, each with a row a sample."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import DataError

__all__ = ["cut_rows", "length", "moved", "split_rows"]


def length(value: Any) -> int:
    """How many samples it has."""
    if isinstance(value, Tensor):
        return len(value)
    found = {len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else -1 for leaf in pytree.tree_leaves(value)}
    if len(found) != 1 or -1 in found:
        raise DataError(
            f"a batch has tensors of {sorted(found - {-1}) or 'no'} samples, or things that are no tensors; inputs and "
            "targets are tensors, or dicts, tuples and lists of them, all with a row a sample"
        )
    return found.pop()


def cut_rows(value: Any, begin: int, end: int) -> Any:
    """The samples from `begin` to `end`."""
    return value[begin:end] if isinstance(value, Tensor) else pytree.tree_map(lambda leaf: leaf[begin:end], value)


def moved(value: Any, device: torch.device) -> Any:
    """On another device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return pytree.tree_map(lambda leaf: leaf.to(device, non_blocking=True), value)


def split_rows(value: Any, sizes: Sequence[int]) -> list[Any]:
    """Parts of so many samples each, one after the other."""
    if isinstance(value, Tensor):
        return list(torch.split(value, list(sizes)))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [cut_rows(value, end - size, end) for size, end in zip(sizes, ends, strict=True)]
