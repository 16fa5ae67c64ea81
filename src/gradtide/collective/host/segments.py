"""Tensors that live in memory all ranks of the host see: collectives on them copy nothing."""

import math
import mmap
import os
import weakref
from dataclasses import dataclass

import numpy as np
import torch

from gradtide.collective.host.board import Board
from gradtide.collective.host.signature import Signature
from gradtide.kernels import Me, Row
from gradtide.transport.memory import create_memory, gather_pages, map_memory, tensor_over

__all__ = ["Segments"]

_PAGE = 4096
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class _Segment:
    """One memory with a part a rank. Only tensors keep its mapping alive: it goes with the last of them."""

    number: int
    part_bytes: int
    mapping: weakref.ReferenceType[mmap.mmap]


class Segments:
    """What this rank has mapped, by the address of its own part; kernels find the same in rows of numbers."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._by_address: dict[int, _Segment] = {}
        self._rows = np.zeros((_ROWS, Row.WORDS), np.int64)
        board.words[Me.SEGMENTS] = self._rows.ctypes.data
        self._made = 0
        self._common: dict[int, int] = {}  # where memory that is one for all ranks begins, and ends

    def create(
        self, signature: Signature, shape: tuple[int, ...], dtype: torch.dtype, timeout_s: float
    ) -> torch.Tensor:
        """A zero-filled tensor of this rank's own, whose memory the others see. All ranks call it together."""
        board = self._board
        board.step(signature, timeout_s)
        self._made += 1
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        part_bytes = -(-size_bytes // _PAGE) * _PAGE
        mapping = self._share(part_bytes * board.size, timeout_s)
        gather_pages(mapping, board.rank, board.size)
        own = tensor_over(mapping, dtype, shape, board.rank * part_bytes)
        self._remember(own.data_ptr(), part_bytes, mapping)
        return own

    def create_common(
        self, signature: Signature, shape: tuple[int, ...], dtype: torch.dtype, timeout_s: float
    ) -> torch.Tensor:
        """A zero-filled tensor that is one and the same for all ranks. All of them call it together."""
        self._board.step(signature, timeout_s)
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        mapping = self._share(-(-size_bytes // _PAGE) * _PAGE, timeout_s)
        made = tensor_over(mapping, dtype, shape)
        self._common[made.data_ptr()] = made.data_ptr() + len(mapping)
        weakref.finalize(mapping, self._common.pop, made.data_ptr(), None)
        return made

    def is_common(self, tensor: torch.Tensor) -> bool:
        """Whether it lies where what one rank writes is what all others read."""
        address = tensor.data_ptr()
        return any(begin <= address < end for begin, end in self._common.items())

    def _remember(self, address: int, part_bytes: int, mapping: mmap.mmap) -> None:
        """Until the mapping goes. What finds no free row is still shared; all-reduce then takes it for any other."""
        board, table, ends = self._board, self._by_address, self._rows[:, Row.END]
        free = int(ends.argmin())
        found = ends[free] == 0

        def forget(_: object) -> None:
            table.pop(address, None)
            if found:
                ends[free] = 0  # a kernel may be reading the rows, but not for a tensor in this one

        table[address] = _Segment(self._made, part_bytes, weakref.ref(mapping, forget))
        if not found:
            return
        first = address - board.rank * part_bytes
        self._rows[free] = (address, address + part_bytes, self._made, first, part_bytes)
        board.words[Me.ROWS] = max(int(board.words[Me.ROWS]), free + 1)

    def _share(self, total_bytes: int, timeout_s: float) -> mmap.mmap:
        board = self._board
        if board.rank:
            return map_memory(board.peers.receive_descriptor(0, timeout_s), total_bytes)
        descriptor = create_memory("tensor", total_bytes)
        try:
            board.peers.send_descriptor(descriptor)
            return map_memory(os.dup(descriptor), total_bytes)
        finally:
            os.close(descriptor)

    def find(self, tensor: torch.Tensor) -> tuple[int, int]:
        """The number of the segment a contiguous tensor lies in (0: none), and its offset in this rank's part."""
        if not self._by_address:
            return 0, 0
        start = tensor.untyped_storage().data_ptr()
        segment = self._by_address.get(start)
        return (segment.number, tensor.data_ptr() - start) if segment else (0, 0)

    def views(self, tensor: torch.Tensor, offsets: list[int]) -> list[torch.Tensor]:
        """Every rank's tensor as bytes, for a tensor that find() found, at each rank's offset."""
        segment = self._by_address[tensor.untyped_storage().data_ptr()]
        mapping = segment.mapping()
        assert mapping is not None, "the tensor keeps its mapping alive"
        size = (tensor.numel() * tensor.element_size(),)
        return [
            tensor_over(mapping, torch.uint8, size, rank * segment.part_bytes + offset)
            for rank, offset in enumerate(offsets)
        ]
