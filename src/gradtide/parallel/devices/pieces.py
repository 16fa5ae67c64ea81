"""A step's batch in pieces that are the same rows on one device and on many: where devices and workers meet in each.

With `accumulate=` a device computes its part piece by piece. Where nothing is shared between samples any rows do. Batch
normalisation over all of them is that of one device only if a piece is the same samples everywhere: so each piece is
cut over all devices, and a device's part is what it has of every piece.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import DataError
from gradtide.even_share import even_share

__all__ = ["dealt", "even_pieces", "take_rows"]


def even_pieces(samples: int, pieces: int) -> list[int]:
    """The sizes of so many pieces, one apart at most: as torch.tensor_split does it, the first ones have one more."""
    return [samples // pieces + (index < samples % pieces) for index in range(pieces)]


def dealt(pieces: Sequence[int], owners: int) -> tuple[list[list[int]], Tensor]:
    """Each owner's samples of every piece; and all rows, one owner's after the other's, in each one's order of pieces.

    Together an owner has its even share of the whole. Raises DataError if one has no sample of a piece.
    """
    ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
    counts, rows = list[list[int]](), list[list[Tensor]]()
    held = [[_held(end, owner, owners) for end in (0, *ends)] for owner in range(owners)]
    taken = [end - size for size, end in zip(pieces, ends, strict=True)]  # the next row of each piece
    for of_owner in held:
        sizes = [after - before for before, after in pairwise(of_owner)]
        if min(sizes) < 1:
            raise DataError(
                f"batch_norm='shared' with accumulate=: a piece of {min(pieces)} samples can't be cut for {owners} "
                "devices or workers; make batches larger, or leave the last ones of an epoch out (drop_last)"
            )
        rows.append([torch.arange(begin, begin + size) for begin, size in zip(taken, sizes, strict=True)])
        counts.append(sizes)
        taken = [begin + size for begin, size in zip(taken, sizes, strict=True)]
    return counts, torch.cat([part for of_owner in rows for part in of_owner])


def _held(samples: int, owner: int, owners: int) -> int:
    begin, end = even_share(samples, owner, owners)
    return end - begin


def take_rows(value: Any, rows: Tensor) -> Any:
    """The samples in this order."""
    return pytree.tree_map(lambda leaf: leaf[rows.to(leaf.device)], value)
