"""Devices of several processes, on one host or on many: over a gradtide.Group.

Messages have a group of their own, and so has every set of devices that exchange or that sum up: tensor exchanges never
queue behind gradients. Groups are joined ahead, in one order for all, since those who join wait for each other.

On one host a message is a letter: one copy, into memory that both share, and its tensors are used where they lie.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.handle import Handle
from gradtide.parallel.split.run.speaking.communicator import Packet
from gradtide.parallel.split.run.speaking.enclosing import letter_bytes, opened, write_letter
from gradtide.parallel.split.run.speaking.headers import FIRST, as_header, as_words, from_header

__all__ = ["GroupCommunicator"]


class GroupCommunicator:
    """One rank's end."""

    def __init__(self, group: Group, exchanging: Iterable[Sequence[int]], summing: Iterable[Sequence[int]]) -> None:
        """All ranks call it together and name the same sets, in which devices exchange and in which they sum up."""
        self.rank, self.size = group.rank, group.size
        self._messages = group.part(range(group.size))
        self._letters = self._messages.open_letters()
        self.keeps_messages = self._letters is not None
        self._sent: list[Handle[None]] = []
        self._exchanging = self._join(exchanging)
        self._summing = self._join(summing)

    def _join(self, sets: Iterable[Sequence[int]]) -> dict[tuple[int, ...], Group]:
        wanted = sorted({tuple(sorted(members)) for members in sets})
        return {members: self._messages.part(members) for members in wanted if self.rank in members}

    def send(self, values: Sequence[Packet], to: int, tag: int) -> None:
        if self._letters is not None:
            words = as_words(values)
            size_bytes = letter_bytes(words, values)
            if self._letters.post(to, tag, size_bytes, lambda letter: write_letter(letter, words, values)):
                return
        # What has left is let go of: a handle keeps its tensor.
        self._sent = [handle for handle in self._sent if not handle.done() or handle.error() is not None]
        header = as_header(values)
        pieces = [header[:FIRST], header[FIRST:]] if len(header) > FIRST else [header]
        for piece in [*pieces, *(value.detach() for value in values if isinstance(value, Tensor) and value.numel())]:
            self._sent.append(self._messages.send(piece, to, tag=tag, async_op=True))

    def receive(self, source: int, tag: int) -> list[Packet]:
        if self._letters is not None:
            letter = self._letters.take(source, tag)
            if letter is not None:
                return opened(letter)
        words: list[int] = self._messages.recv(torch.empty(FIRST, dtype=torch.int64), source, tag=tag).tolist()
        if words[0] > FIRST:
            rest = torch.empty(words[0] - FIRST, dtype=torch.int64)
            words += self._messages.recv(rest, source, tag=tag).tolist()
        values = from_header(words)
        for value in values:
            if isinstance(value, Tensor) and value.numel():
                self._messages.recv(value.detach(), source, tag=tag)
        return values

    def gather(self, tensor: Tensor, members: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        sizes = [torch.Size(shape).numel() for shape in shapes]
        longest = max(sizes)
        if not longest:
            return [tensor.new_empty(tuple(shape)) for shape in shapes]
        flat = tensor.detach().reshape(-1)
        if len(flat) < longest:
            flat = torch.cat([flat, flat.new_zeros(longest - len(flat))])
        rows = self._exchanging[tuple(sorted(members))].all_gather(flat)
        in_order = [rows[place] for place in _places(members)]
        return [row[:size].view(tuple(shape)) for row, size, shape in zip(in_order, sizes, shapes, strict=True)]

    def swap(self, parts: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
        own = parts[list(members).index(self.rank)]
        ranked = sorted(range(len(members)), key=lambda place: members[place])
        flat = torch.cat([parts[place].detach().reshape(-1) for place in ranked])
        sizes = [parts[place].numel() for place in ranked]
        if not len(flat):
            return [torch.empty_like(own) for _ in members]
        group = self._exchanging[tuple(sorted(members))]
        if len(set(sizes)) == 1:
            out = group.all_to_all(flat.view(len(members), -1))
        else:
            out = flat.new_empty(own.numel() * len(members))
            group.all_to_all_split(flat, sizes, out, [own.numel()] * len(members))
        rows = out.view(len(members), *own.shape)
        return [rows[place] for place in _places(members)]

    def add_up(self, tensor: Tensor, members: Sequence[int]) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        if total.numel():
            self._exchanging[tuple(sorted(members))].all_reduce(total)
        return total

    def begin_sum(self, tensor: Tensor, members: Sequence[int], at_once: bool = False) -> "_Awaited":
        """at_once: no thread in the background has to be woken, which would wait for this one's turn with Python."""
        done = self._summing[tuple(sorted(members))].all_reduce(tensor, async_op=not at_once)
        return _Awaited(None if at_once else done)

    def finish(self) -> None:
        sent, self._sent = self._sent, []
        for handle in sent:
            handle.wait()
        if self._letters is not None:
            self._letters.tidy()

    def close(self) -> None:
        for group in self._groups():
            group.close()

    def abort(self, error: BaseException) -> None:
        for group in self._groups():
            group.abort()

    def _groups(self) -> list[Group]:
        return [*self._exchanging.values(), *self._summing.values(), self._messages]


class _Awaited:
    def __init__(self, handle: Handle[Tensor] | None) -> None:
        self._handle = handle

    def wait(self) -> None:
        if self._handle is not None:
            self._handle.wait()


def _places(members: Sequence[int]) -> list[int]:
    """Where each of them is among those in order."""
    ranked = sorted(members)
    return [ranked.index(member) for member in members]
