"""What kernels call the reductions and the types of elements."""

from typing import NamedTuple

import torch

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

_ELEMENTS = {  # as numba names them
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "uint16",  # see kernels/arithmetic.py: uint16 stands for bfloat16
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
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
        element, item_bytes = "uint8", 1
    elif op in (Op.SUM, Op.PRODUCT) and element == "int8":
        element = "uint8"
    return Blocks(*blocks_of(element, op), item_bytes)
