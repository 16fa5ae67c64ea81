"""What parts of a batch gave, as one: devices' parts joined, workers' parts gathered, in the data's order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.even_share import even_share

__all__ = ["gather_rows", "join_rows"]


def join_rows(parts: Sequence[Any], samples: Sequence[int]) -> Any:
    """One after the other, on the CPU; each part has a row a sample."""
    flat = [_rows(part, count) for part, count in zip(parts, samples, strict=True)]
    joined = [torch.cat(same) for same in zip(*flat, strict=True)]
    return pytree.tree_unflatten(joined, pytree.tree_flatten(parts[0])[1])


def _rows(part: Any, samples: int) -> list[Tensor]:
    leaves = pytree.tree_leaves(part)
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != samples:
            found = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise ConfigError(
                f"the model gave {found} for {samples} samples; metrics and predict need tensors with a row a sample"
            )
    return [leaf.detach().cpu() for leaf in leaves]


def gather_rows(group: Group, own: Any, samples: int) -> Any:
    """The rows of a batch of so many samples, of which each rank has its even share, on all ranks."""
    shares = [even_share(samples, rank, group.size) for rank in range(group.size)]
    most = max(end - begin for begin, end in shares)
    return pytree.tree_map(lambda leaf: _gather(group, leaf, shares, most), own)


def _gather(group: Group, rows: Tensor, shares: Sequence[tuple[int, int]], most: int) -> Tensor:
    padded = rows.new_zeros((most, *rows.shape[1:]))
    padded[: len(rows)] = rows
    found: Tensor = group.all_gather(padded)
    return torch.cat([found[rank, : end - begin] for rank, (begin, end) in enumerate(shares)])
