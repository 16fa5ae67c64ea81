"""What kernels call the reductions and the types of elements."""

from typing import NamedTuple

import torch
from numba import types

from gradtide.kernels import Op, blocks_of

__all__ = ["Blocks", "blocks_for"]

_CODES = {
    "sum": Op.SUM,
    "mean": Op.MEAN,
    "min": Op.MIN,
    "max": Op.MAX,
    "product": Op.PRODUCT,
    "band": Op.BAND,
    "bor": Op.BOR,
    "bxor": Op.BXOR,
}
# torch computes on booleans with logic: a sum is "any", a product is "all".
_BOOL_CODES = _CODES | {"sum": Op.BOR, "max": Op.BOR, "min": Op.BAND, "product": Op.BAND}

_ELEMENTS = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.bfloat16: types.uint16,  # see kernels/arithmetic.py: uint16 stands for bfloat16
    torch.int8: types.int8,
    torch.uint8: types.uint8,
    torch.bool: types.uint8,
    torch.int16: types.int16,
    torch.int32: types.int32,
    torch.int64: types.int64,
}


class Blocks(NamedTuple):
    """What kernels need of a reduction."""

    combine: int  # address of what adds a rank
    last: int  # and of what adds the last one
    item_bytes: int  # of what they take for an element


def blocks_for(reduction: str, dtype: torch.dtype) -> Blocks | None:
    """Compiled now if need be; None where kernels have none. Bits are the same in any grouping: bytes will do."""
    element, item_bytes = _ELEMENTS.get(dtype), dtype.itemsize
    if element is None:
        return None
    op = (_BOOL_CODES if dtype == torch.bool else _CODES)[reduction]
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        element, item_bytes = types.uint8, 1
    elif op in (Op.SUM, Op.PRODUCT) and element == types.int8:
        element = types.uint8
    return Blocks(*blocks_of(element, op), item_bytes)
