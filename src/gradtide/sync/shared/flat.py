"""Parameters laid out in one flat space, and who owns which share of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.even_share import even_share
from gradtide.sync.shared.storages import ParameterStorage
from gradtide.sync.trained import Trained

__all__ = ["ALIGN", "Flat", "FlatRun", "lay_out"]

ALIGN = 16  # elements: every storage begins on a cache line


@dataclass(frozen=True, slots=True)
class FlatRun:
    """A run of elements of one parameter: begin and end in the flat space, and where it begins in the parameter."""

    index: int
    begin: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True)
class Flat:
    """Where each parameter begins, and each storage that they lie in; groups of the optimizer lie together, as far as
    they are not in one storage."""

    starts: Sequence[int]
    counts: Sequence[int]
    groups: Sequence[int]
    storages: Sequence[tuple[int, ParameterStorage]]
    total: int

    def share(self, rank: int, ranks: int) -> tuple[int, int]:
        """What a rank owns: even, on cache lines."""
        return even_share(self.total, rank, ranks, ALIGN)

    def parts(self, index: int, begin: int, end: int) -> list[FlatRun]:
        """The run of a parameter that lies in [begin, end), if any."""
        start = self.starts[index]
        low, high = max(start, begin), min(start + self.counts[index], end)
        return [FlatRun(index, low, high, low - start)] if low < high else []

    def pieces(self, begin: int, end: int, most: int, *, apart: bool = False) -> list[tuple[int, list[FlatRun]]]:
        """[begin, end) cut into pieces of at most `most` elements of one group: (group, its parts in order).

        With `apart`, no piece has elements of two parameters.
        """
        pieces: list[tuple[int, list[FlatRun]]] = []
        room, group = 0, -1
        for index in sorted(range(len(self.starts)), key=self.starts.__getitem__):
            for part in self.parts(index, begin, end):
                at, room = part.begin, 0 if apart else room
                while at < part.end:
                    if room < 1 or self.groups[index] != group:
                        group, room = self.groups[index], most
                        pieces.append((group, []))
                    stop = min(part.end, at + room)
                    pieces[-1][1].append(FlatRun(index, at, stop, at - self.starts[index]))
                    room -= stop - at + -(stop - at) % ALIGN
                    at = stop
        return pieces


def lay_out(trained: Trained, storages: Sequence[ParameterStorage]) -> Flat:
    groups = trained.group_of()
    starts, places, at = [0] * len(groups), [], 0
    for storage in sorted(storages, key=lambda one: groups[one.members[0][0]]):
        for index, offset in storage.members:
            starts[index] = at + offset
        places.append((at, storage))
        at += -(-storage.count // ALIGN) * ALIGN
    return Flat(starts, [p.numel() for p in trained.parameters], groups, places, at)
