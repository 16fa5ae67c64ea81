"""What kernels call the reductions and the types of elements."""

from typing import Any

import torch
from numba import types

from gradtide.collective.kernels import Op

__all__ = ["code_of", "element_of"]

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
    torch.bfloat16: types.uint16,  # see kernels.py: uint16 stands for bfloat16
    torch.int8: types.int8,
    torch.uint8: types.uint8,
    torch.bool: types.uint8,
    torch.int16: types.int16,
    torch.int32: types.int32,
    torch.int64: types.int64,
}


def code_of(reduction: str, dtype: torch.dtype) -> int:
    return (_BOOL_CODES if dtype == torch.bool else _CODES)[reduction]


def element_of(dtype: torch.dtype) -> Any:
    """The numba type of this dtype's elements, or None where kernels have none."""
    return _ELEMENTS.get(dtype)
