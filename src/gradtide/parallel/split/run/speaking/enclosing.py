"""What a letter between processes of one host is made of: a message's header, then its tensors, each aligned."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from gradtide.collective.groups.letters import Letter, tensor_in
from gradtide.parallel.split.run.speaking.communicator import Packet
from gradtide.parallel.split.run.speaking.headers import from_header, new_tensor

__all__ = ["letter_bytes", "opened", "write_letter"]

_ALIGNED = 64


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED) * _ALIGNED


def _tensors(values: Sequence[Packet]) -> Iterable[Tensor]:
    return (value for value in values if isinstance(value, Tensor) and value.numel())


def letter_bytes(words: Sequence[int], values: Sequence[Packet]) -> int:
    return _aligned(8 * len(words)) + sum(_aligned(value.nbytes) for value in _tensors(values))


def write_letter(letter: Letter, words: Sequence[int], values: Sequence[Packet]) -> None:
    letter[: 8 * len(words)].view(np.int64)[:] = words
    at = _aligned(8 * len(words))
    for value in _tensors(values):
        tensor_in(letter, at, value.dtype, value.shape).copy_(value.detach())
        at += _aligned(value.nbytes)


def opened(letter: Letter) -> list[Packet]:
    """The values. Tensors lie where the letter does."""
    length = int(letter[:8].view(np.int64)[0])
    at = _aligned(8 * length)

    def lying_there(dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        nonlocal at
        count = torch.Size(shape).numel()
        if not count:
            return new_tensor(dtype, shape)
        found = tensor_in(letter, at, dtype, shape)
        at += _aligned(count * dtype.itemsize)
        return found

    return from_header(letter[: 8 * length].view(np.int64).tolist(), lying_there)
