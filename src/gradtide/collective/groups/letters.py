"""Letters between the ranks of one host: written once into memory that both share, and read where they lie.

Each rank has a box to each other one. A letter's sender copies it into the box, in its own thread; who it is for takes
it when it likes, and its tensors are that memory, until the last of them is let go of. No thread works in the
background, and nobody waits for room: a letter that finds none goes as a message (groups/messages.py), and says so.

a box   letters posted | entries taken | bytes let go of (counters, a line each) | entries | room for letters
entry   tag, where the letter begins (-1: it comes as a message), its bytes, where the next may begin
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradtide.collective.groups.calls import Calls
from gradtide.collective.host.board import Board
from gradtide.kernels import LINE_BYTES

__all__ = ["Letter", "Letters", "boxes_bytes", "tensor_in"]

_ENTRIES, _ENTRY_WORDS = 1024, 4
_HEAD_BYTES = 3 * LINE_BYTES + 8 * _ENTRIES * _ENTRY_WORDS
_ROOM_BYTES, _ALL_ROOMS_BYTES = 64 << 20, 4 << 30  # of a box, and of all: pages that are never used cost nothing
_ALIGNED = 64
_POSTED, _TAKEN, _FREED = (LINE_BYTES * line for line in range(3))

Letter = npt.NDArray[np.uint8]  # its bytes, in the memory that both share


def _room_bytes(size: int) -> int:
    return max(1 << 20, min(_ROOM_BYTES, _ALL_ROOMS_BYTES // size**2)) // 4096 * 4096


def boxes_bytes(size: int) -> int:
    """Of the memory that all ranks share."""
    return size**2 * (_HEAD_BYTES + _room_bytes(size))


class _Box:
    """One rank's view of a box."""

    def __init__(self, board: Board, memory: npt.NDArray[np.uint8], number: int) -> None:
        begin = number * (_HEAD_BYTES + _room_bytes(board.size))
        self.room = memory[begin + _HEAD_BYTES : begin + _HEAD_BYTES + _room_bytes(board.size)]
        entries = memory[begin + 3 * LINE_BYTES : begin + _HEAD_BYTES]
        self.entries = entries.view(np.int64).reshape(_ENTRIES, _ENTRY_WORDS)
        self.counters = memory.ctypes.data + begin - board.base  # as the board counts places
        self.count = 0  # of letters, posted or taken
        self.written = 0  # bytes that were ever written: a place in the room is the rest by its size
        self.free_from = 0  # everything before it is free, whatever was let go of


class _Inbox(_Box):
    """What comes from one rank."""

    def __init__(self, board: Board, memory: npt.NDArray[np.uint8], number: int) -> None:
        super().__init__(board, memory, number)
        self.waiting: dict[int, deque[Letter | None]] = defaultdict(deque)  # by tag
        self.ends: deque[int] = deque()  # of the letters in the room, in their order
        self.dropped: deque[int] = deque()  # the ends of those that nobody has any more; any thread says so
        self.known: set[int] = set()


class Letters:
    """This rank's boxes. One thread at a time may use them."""

    def __init__(self, board: Board, calls: Calls, memory: Tensor) -> None:
        """memory: boxes_bytes(size) of zeroes that all ranks share."""
        self._board, self._calls, bytes_of_all = board, calls, memory.numpy()
        others, me, size = [r for r in range(board.size) if r != board.rank], board.rank, board.size
        self._out = {other: _Box(board, bytes_of_all, me * size + other) for other in others}
        self._in = {other: _Inbox(board, bytes_of_all, other * size + me) for other in others}

    def post(self, to: int, tag: int, size_bytes: int, write: Callable[[Letter], None]) -> bool:
        """`write` is given the letter's memory, if there is room. Else only the tag is posted, and that it comes as a
        message: the caller sends one."""
        self._calls.check()
        board, box = self._board, self._out[to]
        place = self._place(box, size_bytes)
        if place is not None:
            begin = place % len(box.room)
            write(box.room[begin : begin + size_bytes])
            box.written = place + size_bytes
        if not board.reached(box.counters + _TAKEN, box.count + 1 - _ENTRIES):
            self._wait(box, _TAKEN, box.count + 1 - _ENTRIES, to, f"send to rank {board.name_of(to)}: a letter")
        box.entries[box.count % _ENTRIES] = (
            (tag, -1, 0, 0) if place is None else (tag, place % len(box.room), size_bytes, box.written)
        )
        box.count += 1
        board.post(box.counters + _POSTED, box.count)
        return place is not None

    def take(self, source: int, tag: int) -> Letter | None:
        """The next one with this tag, which lies there until nothing refers to it; None: it comes as a message."""
        self._calls.check()
        box = self._in[source]
        waiting = box.waiting[tag]
        self._tidy(box)
        while not waiting:
            what = f"receive from rank {self._board.name_of(source)}: a letter"
            self._wait(box, _POSTED, box.count + 1, source, what)
            self._open_next(box)
        return waiting.popleft()

    def tidy(self) -> None:
        """Tells the others which room is free again."""
        for box in self._in.values():
            self._tidy(box)

    # --- How ---

    def _place(self, box: _Box, size_bytes: int) -> int | None:
        """Where so many bytes can be written, counted from the beginning of all times."""
        room = len(box.room)
        front = -(-box.written // room) * room
        if size_bytes > room:
            return None
        if self._board.reached(box.counters + _FREED, box.written):  # all is free: the front is still in the caches
            box.free_from = front
            return front
        begin = -(-box.written // _ALIGNED) * _ALIGNED
        if begin % room + size_bytes > room:
            begin = front
        needed = begin + size_bytes - room
        return begin if needed <= box.free_from or self._board.reached(box.counters + _FREED, needed) else None

    def _wait(self, box: _Box, counter: int, value: int, other: int, what: str) -> None:
        board, limit_s = self._board, self._calls.timeout_s
        self._calls.guarded(lambda: board.wait(box.counters + counter, value, other, what, limit_s, alone=True))

    def _open_next(self, box: _Inbox) -> None:
        tag, begin, size_bytes, end = box.entries[box.count % _ENTRIES].tolist()
        box.count += 1
        letter: Letter | None = None
        if begin >= 0:
            letter = box.room[begin : begin + size_bytes]
            box.ends.append(end)
            # What runs when memory goes may run anywhere: it only notes that.
            weakref.finalize(letter, box.dropped.append, end).atexit = False
        box.waiting[tag].append(letter)
        self._board.post(box.counters + _TAKEN, box.count)

    def _tidy(self, box: _Inbox) -> None:
        """Room is free in the order in which it was used."""
        while box.dropped:
            box.known.add(box.dropped.popleft())
        freed = 0
        while box.ends and box.ends[0] in box.known:
            freed = box.ends.popleft()
            box.known.remove(freed)
        if freed:
            self._board.post(box.counters + _FREED, freed)


def tensor_in(letter: Letter, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A tensor that lies in the letter, which lives as long as it does."""
    count = torch.Size(shape).numel()
    return torch.frombuffer(letter, dtype=dtype, count=count, offset=begin).view(tuple(shape))
