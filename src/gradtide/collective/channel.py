"""Messages from one rank to another on the same host: a ring of buffers for each ordered pair.

The sender raises the head after it filled a buffer, the receiver the tail after it emptied one. A message is one buffer
that says what comes (a signature as text), then the bytes, piece by piece.
"""

import torch

from gradtide.collective.board import CHANNEL_BUFFERS, CHANNEL_BYTES, Board
from gradtide.collective.signature import Signature
from gradtide.errors import Mismatch

__all__ = ["Channels"]

_TEXT_BYTES = 1024
_NUMBER_BYTES = 8


class Channels:
    """This rank's ends of its channels. Each direction to each peer may be used by one thread at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = [0] * board.size
        self._received = [0] * board.size

    def send(self, signature: Signature, data: torch.Tensor, target: int, timeout_s: float) -> None:
        """Returns once the bytes are in the channel: small messages don't wait for the receiver."""
        header = torch.zeros(_NUMBER_BYTES + _TEXT_BYTES, dtype=torch.uint8)
        text = signature.text.encode()[:_TEXT_BYTES]
        header[:_NUMBER_BYTES].view(torch.int64)[0] = len(data)
        header[_NUMBER_BYTES : _NUMBER_BYTES + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._put(header, target, signature.text, timeout_s)
        for begin in range(0, len(data), CHANNEL_BYTES):
            self._put(data[begin : begin + CHANNEL_BYTES], target, signature.text, timeout_s)

    def receive(self, signature: Signature, data: torch.Tensor, source: int, timeout_s: float) -> None:
        """Takes the next message. One that does not fit is taken off the channel too, so the next one is found."""
        header = torch.empty(_NUMBER_BYTES + _TEXT_BYTES, dtype=torch.uint8)
        self._get(header, source, signature.text, timeout_s)
        size_bytes = int(header[:_NUMBER_BYTES].view(torch.int64)[0])
        text = bytes(header[_NUMBER_BYTES:].tolist()).rstrip(b"\0").decode(errors="replace")
        matches = text == signature.text[:_TEXT_BYTES] and size_bytes == len(data)
        target = data if matches else torch.empty(CHANNEL_BYTES, dtype=torch.uint8)
        for begin in range(0, size_bytes, CHANNEL_BYTES):
            length = min(CHANNEL_BYTES, size_bytes - begin)
            piece = target[begin : begin + length] if matches else target[:length]
            self._get(piece, source, signature.text, timeout_s)
        if not matches:
            raise Mismatch(
                f"rank {source} sent {text}, but rank {self._board.rank} receives {signature.text}; make them agree"
            )

    def _put(self, piece: torch.Tensor, target: int, what: str, timeout_s: float) -> None:
        board, number = self._board, self._sent[target]
        tail = board.layout.tail(board.rank, target)
        board.wait(tail, number + 1 - CHANNEL_BUFFERS, target, f"send to rank {target}: {what}", timeout_s)
        self._buffer(board.rank, target, number)[: len(piece)].copy_(piece)
        self._sent[target] = number + 1
        board.post(board.layout.head(board.rank, target), number + 1)

    def _get(self, piece: torch.Tensor, source: int, what: str, timeout_s: float) -> None:
        board, number = self._board, self._received[source]
        head = board.layout.head(source, board.rank)
        board.wait(head, number + 1, source, f"receive from rank {source}: {what}", timeout_s)
        piece.copy_(self._buffer(source, board.rank, number)[: len(piece)])
        self._received[source] = number + 1
        board.post(board.layout.tail(source, board.rank), number + 1)

    def _buffer(self, source: int, target: int, number: int) -> torch.Tensor:
        board = self._board
        index = (source * board.size + target) * CHANNEL_BUFFERS + number % CHANNEL_BUFFERS
        begin = board.layout.channels + index * CHANNEL_BYTES
        return board.bytes[begin : begin + CHANNEL_BYTES]
