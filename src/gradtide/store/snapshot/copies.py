"""Memory for a checkpoint's copies, kept from one checkpoint to the next.

To touch pages for the first time takes ten times as long as to copy into them: 0.3 s for 256 MB on a virtual
machine. A round that follows a cut has to wait for that.
"""

import mmap
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Copies"]

_LARGE_BYTES = 1 << 20  # from here on a copy begins with a page: a disk takes it from where it is


class Copies:
    """Made by one thread and given back by another."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[Tensor]] = {}

    def make(self, value: Tensor) -> Tensor:
        """The same, in memory of its own."""
        try:
            kept = self._free[value.dtype, value.numel()].pop()
        except (KeyError, IndexError):
            if value.nbytes < _LARGE_BYTES:
                return value.detach().clone()
            kept = torch.frombuffer(mmap.mmap(-1, value.nbytes), dtype=value.dtype)
        return kept.view(value.shape).copy_(value.detach())

    def take_back(self, values: Iterable[Tensor]) -> None:
        """Copies that nobody needs any more."""
        for value in values:
            self._free.setdefault((value.dtype, value.numel()), []).append(value.view(-1))
