"""The collectives of ranks on one host: everybody shows something at a meeting, then takes what it needs.

Tensors here are contiguous and on the CPU; group.py sees to that. A tensor goes through the slots a piece at a time,
or, when every rank's lies in the same shared memory, is read where it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.board import SLOT_BYTES, Board
from gradtide.collective.host.channel import Channels
from gradtide.collective.host.extents import Base, in_turn
from gradtide.collective.host.handing import Hand, hand_words, trade
from gradtide.collective.host.prepare import as_bytes
from gradtide.collective.host.reductions import Reduction, reduce_in_order
from gradtide.collective.host.segments import Segments
from gradtide.collective.host.signature import Call, Signature
from gradtide.even_share import even_share
from gradtide.kernels import DONE, KERNELS, HandPlan

__all__ = ["AllReduce", "Call", "OneHost"]

_IN_PLACE_BYTES = 256 * 1024  # where Python does it, shared tensors from this size on are read where they lie
_ALIGN = 64

# What a rank does after a meeting, with what every rank showed (as bytes, parts x width) and where that piece begins.
Take = Callable[[list[torch.Tensor], int], None]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A plan for kernels: all that is the same at every all-reduce of one shape, type and reduction."""

    address: int
    signature: Signature
    words: npt.NDArray[np.int64]  # what is at the address
    keeps: object = None  # what else must live as long


class OneHost:
    """Every collective, between the ranks that meet at one board."""

    def __init__(self, board: Board) -> None:
        self.board, self.segments = board, Segments(board)
        self.rank, self.size = board.rank, board.size
        self._channels = Channels(board)
        self.in_good_order = True  # unless an operation failed: the others are told which it was when this rank leaves
        self.all_reduce_now = KERNELS.ALL_REDUCE.entry  # (address of a plan, address of a tensor): a code

    def close(self) -> None:
        self.board.close(in_good_order=self.in_good_order)

    def barrier(self, call: Call) -> None:
        self.board.step(call.signature, call.timeout_s)

    def all_reduce(self, call: Call, tensor: torch.Tensor, how: Reduction) -> None:
        if how.blocks is not None:
            return self.run(self.plan(call.signature, tensor.numel(), how), tensor, call.timeout_s)
        if tensor.numel() * how.item_bytes >= _IN_PLACE_BYTES:
            segment, offset = self.segments.find(tensor)
            self.board.step(call.signature, call.timeout_s, segment, offset)
            if (offsets := self.board.shared_by_all()) is not None:
                self._reduce_in_place(tensor, offsets, how)
                return self.board.step(call.signature, call.timeout_s)
        flat = as_bytes(tensor)
        return self._exchange(call, flat.view(1, -1), lambda shown, at: self._reduce(how, flat, shown, 0, at))

    def plan(self, signature: Signature, count: int, how: Reduction) -> AllReduce:
        """What the compiled all-reduce needs to know, for a reduction that kernels have."""
        assert how.blocks is not None
        combine, last, item = how.blocks
        words = np.array(
            [self.board.me, count * how.item_bytes // item, item, signature.number, combine, last], np.int64
        )
        return AllReduce(words.ctypes.data, signature, words)

    def run(self, plan: AllReduce, tensor: torch.Tensor, timeout_s: float) -> None:
        code = self.all_reduce_now(plan.address, tensor.data_ptr())
        if code != DONE:
            self.finish(plan, tensor, code, timeout_s)

    def finish(self, plan: AllReduce, tensor: torch.Tensor, code: int, timeout_s: float) -> None:
        """Sees a compiled all-reduce that did not end at once to its end."""
        address = tensor.data_ptr()
        self.board.finish(code, lambda: int(self.all_reduce_now(plan.address, address)), plan.signature, timeout_s)

    def broadcast(self, call: Call, tensor: torch.Tensor, root: int) -> None:
        flat = as_bytes(tensor)

        def take(shown: list[torch.Tensor], begin: int) -> None:
            if self.rank != root:
                flat[begin : begin + shown[root].shape[1]].copy_(shown[root][0])

        self._exchange(call, flat.view(1, -1), take, shows=self.rank == root)

    def reduce(self, call: Call, tensor: torch.Tensor, how: Reduction, root: int) -> None:
        flat = as_bytes(tensor)

        def take(shown: list[torch.Tensor], begin: int) -> None:
            if self.rank == root:
                # In shared memory the target is one of the sources: the sum must not begin with the root's own.
                whole = len(shown[0][0]) == len(flat) and shown[root].data_ptr() == flat.data_ptr()
                target = torch.empty_like(flat) if whole else flat
                self._reduce(how, target, shown, 0, begin)
                if whole:
                    flat.copy_(target)

        self._exchange(call, flat.view(1, -1), take)

    def all_gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        self._exchange(call, as_bytes(tensor).view(1, -1), _collect(as_bytes(out).view(self.size, -1)))

    def gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor | None, root: int) -> None:
        take = _ignore if out is None else _collect(as_bytes(out).view(self.size, -1))
        self._exchange(call, as_bytes(tensor).view(1, -1), take)

    def scatter(self, call: Call, source: torch.Tensor | None, out: torch.Tensor, root: int) -> None:
        flat = as_bytes(out)

        def take(shown: list[torch.Tensor], begin: int) -> None:
            flat[begin : begin + shown[root].shape[1]].copy_(shown[root][self.rank])

        shown = flat.new_empty(0).expand(self.size, 0) if source is None else as_bytes(source).view(self.size, -1)
        self._exchange(call, shown, take, shows=source is not None, width=len(flat))

    def all_to_all(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        rows = as_bytes(out).view(self.size, -1)

        def take(shown: list[torch.Tensor], begin: int) -> None:
            for rank, parts in enumerate(shown):
                rows[rank, begin : begin + parts.shape[1]].copy_(parts[self.rank])

        self._exchange(call, as_bytes(tensor).view(self.size, -1), take)

    def all_to_all_split(
        self, call: Call, tensor: torch.Tensor, out: torch.Tensor, sizes: Sequence[Sequence[int]]
    ) -> None:
        """sizes: how many bytes go from each rank to each, on which all have agreed."""
        leaving, arriving = in_turn(Base.TENSOR, sizes[self.rank]), in_turn(Base.OUT, [row[self.rank] for row in sizes])
        widest = max(max(row) for row in sizes)
        words = hand_words(self.board, Hand(self.size, widest, trade(range(self.size), self.rank, leaving, arriving)))
        words[HandPlan.SIGNATURE] = call.signature.number
        arguments = int(words.ctypes.data), tensor.data_ptr(), out.data_ptr(), 0
        hand = KERNELS.HAND.entry
        self.board.finish(hand(*arguments), lambda: int(hand(*arguments)), call.signature, call.timeout_s)

    def reduce_scatter(self, call: Call, tensor: torch.Tensor, out: torch.Tensor, how: Reduction) -> None:
        flat = as_bytes(out)
        parts = as_bytes(tensor).view(self.size, -1)
        self._exchange(call, parts, lambda shown, at: self._reduce(how, flat, shown, self.rank, at))

    def send(self, call: Call, data: torch.Tensor, target: int, tag: int) -> None:
        note = Announcement(len(data), tag, call.signature.text)
        self._channels.send(note, data, target, call.timeout_s)

    def has_room(self, size_bytes: int, target: int) -> bool:
        return self._channels.has_room(size_bytes, target)

    def is_announced(self, source: int) -> bool:
        return self._channels.is_announced(source)

    is_at_hand = is_announced  # what has begun to arrive here is not far

    def progress(self, source: int) -> int:
        """Changes when something of a message has come."""
        return self._channels.progress(source)

    def announced(self, call: Call, source: int) -> Announcement:
        return self._channels.announced(call, source)

    def take(self, call: Call, data: torch.Tensor, source: int) -> None:
        self._channels.take(call, data, source)

    def gone(self) -> list[int]:
        """The ranks that died or left."""
        return self.board.peers.gone()

    # --- How ---

    def _exchange(
        self, call: Call, parts: torch.Tensor, take: Take, *, shows: bool = True, width: int | None = None
    ) -> None:
        """Each rank shows its parts (rows of bytes) and takes from the others', a piece of all rows at a time."""
        rows, width = parts.shape[0], parts.shape[1] if width is None else width
        if rows * width >= _IN_PLACE_BYTES:
            segment, offset = self.segments.find(parts)
            self.board.step(call.signature, call.timeout_s, segment, offset)
            if (offsets := self.board.shared_by_all()) is not None:
                take([view.view(rows, -1) for view in self.segments.views(parts, offsets)], 0)
                return self.board.step(call.signature, call.timeout_s)
        piece = max(_ALIGN, SLOT_BYTES // rows // _ALIGN * _ALIGN)
        for begin in range(0, max(1, width), piece):
            length = min(piece, width - begin)
            if shows and length:
                self.board.next_slot()[: rows * length].view(rows, length).copy_(parts[:, begin : begin + length])
            self.board.step(call.signature, call.timeout_s)
            if length:
                take([slot[: rows * length].view(rows, length) for slot in self.board.slots()], begin)
        return None

    def _reduce(self, how: Reduction, flat: torch.Tensor, shown: list[torch.Tensor], row: int, begin: int) -> None:
        """Reduces one row of what the ranks showed into the piece of `flat` that begins there."""
        sources = [parts[row] for parts in shown]
        target = flat[begin : begin + len(sources[0])]
        if how.blocks is None:
            reduce_in_order(how, target.view(how.dtype), [source.view(how.dtype) for source in sources])
            return
        self.board.aim([source.data_ptr() for source in sources])
        combine, last, item = how.blocks
        KERNELS.REDUCE.entry(self.board.me, target.data_ptr(), len(target) // item, item, combine, last)

    def _reduce_in_place(self, tensor: torch.Tensor, offsets: list[int], how: Reduction) -> None:
        """This rank's part of tensors that all lie in shared memory, where kernels can't compute."""
        views = [view.view(how.dtype) for view in self.segments.views(tensor, offsets)]
        begin, end = even_share(tensor.numel(), self.rank, self.size, max(1, _ALIGN // how.item_bytes))
        parts = [view[begin:end] for view in views]
        reduce_in_order(how, parts[0], parts)
        for part in parts[1:]:
            part.copy_(parts[0])


def _ignore(shown: list[torch.Tensor], begin: int) -> None:
    pass


def _collect(rows: torch.Tensor) -> Take:
    def take(shown: list[torch.Tensor], begin: int) -> None:
        for rank, parts in enumerate(shown):
            rows[rank, begin : begin + parts.shape[1]].copy_(parts[0])

    return take
