"""Messages from one rank to another on the same host: a ring of buffers for each ordered pair.

The sender raises the head after it filled a buffer, the receiver the tail after it emptied one. A message is one buffer
that announces what comes, then the bytes, piece by piece.
"""

import torch

from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.board import CHANNEL_BUFFERS, CHANNEL_BYTES, Board
from gradtide.collective.host.signature import Call

__all__ = ["Channels"]


class Channels:
    """This rank's ends of its channels. Each direction to each peer may be used by one thread at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = [0] * board.size
        self._received = [0] * board.size

    def send(self, note: Announcement, data: torch.Tensor, target: int, timeout_s: float) -> None:
        """Returns once the bytes are in the channel: small messages don't wait for the receiver."""
        self._put(note.encoded(), target, note.text, timeout_s)
        for begin in range(0, len(data), CHANNEL_BYTES):
            self._put(data[begin : begin + CHANNEL_BYTES], target, note.text, timeout_s)

    def has_room(self, size_bytes: int, target: int) -> bool:
        """Whether a message of this size could be sent without waiting."""
        board, pieces = self._board, 1 + -(-size_bytes // CHANNEL_BYTES)
        return pieces <= CHANNEL_BUFFERS and board.reached(
            board.layout.tail(board.rank, target), self._sent[target] + pieces - CHANNEL_BUFFERS
        )

    def is_announced(self, source: int) -> bool:
        """Whether a message from `source` has begun to arrive."""
        board = self._board
        return board.reached(board.layout.head(source, board.rank), self._received[source] + 1)

    def progress(self, source: int) -> int:
        """How many buffers of `source` were emptied so far."""
        return self._received[source]

    def announced(self, call: Call, source: int) -> Announcement:
        """The next message's announcement. Then comes take()."""
        room = Announcement.room()
        self._get(room, source, call)
        return Announcement.decoded(room)

    def take(self, call: Call, data: torch.Tensor, source: int) -> None:
        """The bytes of the message that was announced."""
        for begin in range(0, len(data), CHANNEL_BYTES):
            self._get(data[begin : begin + CHANNEL_BYTES], source, call)

    def _put(self, piece: torch.Tensor, target: int, what: str, timeout_s: float) -> None:
        board, number = self._board, self._sent[target]
        tail = board.layout.tail(board.rank, target)
        what = f"send to rank {board.name_of(target)}: {what}"
        board.wait(tail, number + 1 - CHANNEL_BUFFERS, target, what, timeout_s, alone=True)
        self._buffer(board.rank, target, number)[: len(piece)].copy_(piece)
        self._sent[target] = number + 1
        board.post(board.layout.head(board.rank, target), number + 1)

    def _get(self, piece: torch.Tensor, source: int, call: Call) -> None:
        board, number = self._board, self._received[source]
        head = board.layout.head(source, board.rank)
        what = f"receive from rank {board.name_of(source)}: {call.signature.text}"
        board.wait(head, number + 1, source, what, call.timeout_s, alone=True, look=call.look)
        piece.copy_(self._buffer(source, board.rank, number)[: len(piece)])
        self._received[source] = number + 1
        board.post(board.layout.tail(source, board.rank), number + 1)

    def _buffer(self, source: int, target: int, number: int) -> torch.Tensor:
        board = self._board
        index = (source * board.size + target) * CHANNEL_BUFFERS + number % CHANNEL_BUFFERS
        begin = board.layout.channels + index * CHANNEL_BYTES
        return board.bytes[begin : begin + CHANNEL_BYTES]
