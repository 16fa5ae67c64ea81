"""What a message is made of, in whole numbers that go ahead of its tensors: types, shapes, and values that are none."""

import struct
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.parallel.split.run.speaking.communicator import Packet

__all__ = ["FIRST", "MakeTensor", "as_header", "as_words", "from_header", "new_tensor"]

FIRST = 48  # whole numbers that every message begins with; what is longer follows in a second piece

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
MakeTensor = Callable[[torch.dtype, Sequence[int]], Tensor]
_NONE, _TENSOR, _INT, _FLOAT, _BOOL = range(5)


def as_words(values: Sequence[Packet]) -> list[int]:
    """How many there are, then each value: its kind, and what is to be known of it."""
    words = [0, len(values)]
    for value in values:
        words += _describe(value)
    words[0] = len(words)
    return words


def as_header(values: Sequence[Packet]) -> Tensor:
    words = as_words(values)
    words += [0] * (FIRST - len(words))
    return torch.tensor(words, dtype=torch.int64)


def new_tensor(dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def _describe(value: Packet) -> list[int]:
    if value is None:
        return [_NONE]
    if isinstance(value, bool):
        return [_BOOL, int(value)]
    if isinstance(value, int):
        return [_INT, value]
    if isinstance(value, float):
        return [_FLOAT, struct.unpack("<q", struct.pack("<d", value))[0]]
    if value.dtype not in _DTYPES or value.layout != torch.strided:
        raise ConfigError(f"a tensor of {value.dtype}, {value.layout} can't go from stage to stage; cut elsewhere")
    return [_TENSOR, _DTYPES.index(value.dtype), int(value.requires_grad), value.dim(), *value.shape]


def from_header(words: Sequence[int], make: MakeTensor = new_tensor) -> list[Packet]:
    """The values. Tensors are made in their order: empty ones unless `make` knows where theirs is."""
    found: list[Packet] = []
    at = 2
    for _ in range(words[1]):
        kind = words[at]
        if kind == _TENSOR:
            dtype, gradient, dims = words[at + 1 : at + 4]
            shape = words[at + 4 : at + 4 + dims]
            found.append(make(_DTYPES[dtype], shape).requires_grad_(bool(gradient)))
            at += 4 + dims
        elif kind == _NONE:
            found.append(None)
            at += 1
        else:
            found.append(_number(kind, words[at + 1]))
            at += 2
    return found


def _number(kind: int, word: int) -> Packet:
    if kind == _FLOAT:
        number: float = struct.unpack("<d", struct.pack("<q", word))[0]
        return number
    return bool(word) if kind == _BOOL else word
