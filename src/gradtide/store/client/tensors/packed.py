"""Many small keys in one request: their tensors gathered into one piece of memory, and scattered from it.

What a set of keys needs for that is worked out once (`pack`); a request then costs a few calls of torch, whatever the
number of keys. For keys of one dtype that are one block each; others go piece by piece (values.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from gradtide.store.rules.tensors import bytes_of
from gradtide.store.wire.layouts import BlockLayout, Gathered

__all__ = ["Packed", "pack"]

_FEWEST = 16  # keys; below that it is not worth a copy
_shape: Callable[[Any], Any] = attrgetter("shape")
_dtype: Callable[[Any], Any] = attrgetter("dtype")
_is_cpu: Callable[[Any], bool] = attrgetter("is_cpu")


@dataclass(frozen=True, slots=True)
class Packed:
    """How the tensors of a set of keys lie in one piece of memory, in the order of the layout's pieces."""

    shapes: list[tuple[int, ...]]  # by key
    dtype: torch.dtype
    by_piece: Callable[[Sequence[Any]], tuple[Any, ...]]  # from the order of the keys to that of the pieces
    by_key: Callable[[Sequence[Any]], tuple[Any, ...]]
    templates: tuple[Tensor, ...]  # by piece: shapes without memory
    bounds: tuple[int, ...]  # by piece: its first byte; and the end

    def fits(self, tensors: Sequence[Any]) -> bool:
        """Are these, by key, all as they should be? Where not, who looks at them one by one says which is wrong."""
        try:
            right = list(map(_shape, tensors)) == self.shapes and set(map(_dtype, tensors)) == {self.dtype}
            return right and all(map(_is_cpu, tensors))
        except AttributeError:
            return False

    def gather(self, tensors: Sequence[Tensor]) -> Gathered:
        """A copy of them all."""
        with torch.no_grad():
            flat: Tensor = _flatten_dense_tensors(self.by_piece(tensors))
        return Gathered(bytes_of(flat), self.bounds)

    def land(self) -> tuple[Gathered, Tensor]:
        """Memory for them all."""
        flat = torch.empty(self.bounds[-1] // self.dtype.itemsize, dtype=self.dtype)
        return Gathered(bytes_of(flat), self.bounds), flat

    def scatter(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The tensors, by key; they share the memory that was received into."""
        return self.by_key(_unflatten_dense_tensors(flat, self.templates))

    def scatter_into(self, flat: Tensor, outs: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(outs), list(self.scatter(flat)))


def pack(
    layout: BlockLayout,
    places: Sequence[tuple[int, int, int]],
    shapes: Sequence[tuple[int, ...]],
    dtypes: set[torch.dtype],
) -> Packed | None:
    """`places`: by piece, which key it is of. None where keys can't be packed."""
    if len(shapes) < _FEWEST or len(places) != len(shapes) or len(dtypes) != 1:
        return None
    if any(piece.start or not piece.count for piece in layout.pieces):
        return None
    keys = [key for key, _, _ in places]
    positions = {key: i for i, key in enumerate(keys)}
    if len(positions) != len(shapes):
        return None
    templates = tuple(torch.empty(shapes[key], device="meta") for key in keys)
    bounds = (0, *accumulate(piece.size_bytes for piece in layout.pieces))
    by_key = itemgetter(*(positions[i] for i in range(len(keys))))
    (dtype,) = dtypes
    return Packed(list(shapes), dtype, itemgetter(*keys), by_key, templates, bounds)
