"""Tensors as raw memory, and their dtypes by name."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["DTYPES", "bytes_of", "dtype_name"]

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str | None:
    """Its name on the wire; None where the store has no such values."""
    return _NAMES.get(dtype)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype is torch.bfloat16:  # which numpy does not have
        tensor = tensor.view(torch.int16)
    array: Any = tensor.numpy()  # numpy's own types don't say that an array is a buffer
    return memoryview(array).cast("B")
