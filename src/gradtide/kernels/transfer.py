"""Messages between hosts over sockets: several streams at once, each one way, from and into tensors' own memory.

What is to be added up where it arrives goes through a small stage, which stays in the cache. No transfer waits for
ever: it comes back after a bounded time with WAITING, and goes on where it was when called again.
"""

from typing import Any

from numba.extending import register_jitable

from gradtide.kernels.atomics import call_block, copy, set_word, word
from gradtide.kernels.sockets import AGAIN, MORE, nanoseconds, poll_all, receive_some, send_some
from gradtide.kernels.words import BROKEN, DONE, WAITING, Piece, Stream, Transfer

__all__ = ["transfer"]

_READABLE, _WRITABLE = 1 << 32, 4 << 32  # of a pollfd as one little-endian word
_NOBODY = 0xFFFFFFFF  # a descriptor of -1
_MOST_BYTES = 1 << 20  # one way, before the others have their turn
_RESET = -104  # ECONNRESET


def transfer(deal: Any) -> Any:
    """Moves what it can until what is awaited is over: DONE, WAITING or BROKEN."""
    until = nanoseconds() + word(deal, Transfer.TURN_NS)
    while True:
        moved = _move_all(deal)
        if moved < 0:
            return BROKEN
        set_word(deal, Transfer.MOVED, word(deal, Transfer.MOVED) + moved)
        if _is_over(deal):
            return DONE
        if moved == 0 and _sleep(deal) <= 0:
            return WAITING
        if nanoseconds() > until:
            return WAITING


@register_jitable
def _row(deal: Any, stream: Any) -> Any:
    return word(deal, Transfer.ROWS) + 8 * Stream.WORDS * stream


@register_jitable
def _is_idle(row: Any) -> Any:
    return word(row, Stream.OVER) == word(row, Stream.COUNT)


@register_jitable
def _is_over(deal: Any) -> Any:
    awaited = word(deal, Transfer.AWAITED)
    if awaited >= 0:
        return word(_row(deal, awaited), Stream.OVER) >= word(deal, Transfer.UNTIL)
    for stream in range(word(deal, Transfer.STREAMS)):
        row = _row(deal, stream)
        if word(row, Stream.LEAVES) and not _is_idle(row):
            return False
    return True


@register_jitable
def _move_all(deal: Any) -> Any:
    """How many bytes moved; -1 if a stream is broken, which is then noted."""
    total = 0
    for stream in range(word(deal, Transfer.STREAMS)):
        row = _row(deal, stream)
        moved = _send(row) if word(row, Stream.LEAVES) else _receive(deal, row)
        if moved < 0:
            set_word(deal, Transfer.BROKEN_STREAM, stream)
            set_word(deal, Transfer.ERROR, -moved)
            return -1
        total += moved
    return total


@register_jitable
def _next_piece(row: Any) -> Any:
    """The address of the first that is not over; what has no bytes is over at once."""
    while not _is_idle(row):
        piece = word(row, Stream.PIECES) + 8 * Piece.WORDS * word(row, Stream.OVER)
        if word(row, Stream.MOVED) < word(piece, Piece.SIZE_BYTES):
            return piece
        set_word(row, Stream.OVER, word(row, Stream.OVER) + 1)
        set_word(row, Stream.MOVED, 0)
    return 0


@register_jitable
def _send(row: Any) -> Any:
    total = 0
    while total < _MOST_BYTES:
        piece = _next_piece(row)
        if piece == 0:
            break
        moved = word(row, Stream.MOVED)
        left = min(word(piece, Piece.SIZE_BYTES) - moved, _MOST_BYTES)
        more = MORE if word(row, Stream.OVER) + 1 < word(row, Stream.COUNT) else 0
        count = send_some(word(row, Stream.DESCRIPTOR), word(piece, Piece.ADDRESS) + moved, left, more)
        if count < 0:
            if count != AGAIN:
                return count
            break
        set_word(row, Stream.MOVED, moved + count)
        total += count
        if count < left:  # its buffer is full: the next would be in vain
            break
    _next_piece(row)
    return total


@register_jitable
def _receive(deal: Any, row: Any) -> Any:
    total = 0
    while total < _MOST_BYTES:
        piece = _next_piece(row)
        if piece == 0:
            break
        moved, staged = word(row, Stream.MOVED), word(row, Stream.STAGED)
        left = min(word(piece, Piece.SIZE_BYTES) - moved - staged, _MOST_BYTES)
        at = word(piece, Piece.ADDRESS) + moved
        if word(piece, Piece.COMBINE):
            at, left = word(row, Stream.STAGE) + staged, min(left, word(deal, Transfer.STAGE_BYTES) - staged)
        count = receive_some(word(row, Stream.DESCRIPTOR), at, left)
        if count == AGAIN:
            break
        if count <= 0:
            return count if count else _RESET
        if word(piece, Piece.COMBINE):
            _add_staged(row, piece, staged + count)
        else:
            set_word(row, Stream.MOVED, moved + count)
        total += count
        if count < left:
            break
    _next_piece(row)
    return total


@register_jitable
def _add_staged(row: Any, piece: Any, staged: Any) -> None:
    """Adds up the whole elements that are in the stage."""
    item, stage, moved = word(piece, Piece.ITEM), word(row, Stream.STAGE), word(row, Stream.MOVED)
    count = staged // item
    if count:
        target = word(piece, Piece.ADDRESS) + moved
        call_block(word(piece, Piece.COMBINE), target, target, stage, 0, count, 1)
        copy(stage, stage + count * item, staged - count * item)
        set_word(row, Stream.MOVED, moved + count * item)
    set_word(row, Stream.STAGED, staged - count * item)


@register_jitable
def _sleep(deal: Any) -> Any:
    """Until a stream can go on, for a bounded time."""
    entries, count = word(deal, Transfer.POLLS), word(deal, Transfer.STREAMS)
    for stream in range(count):
        row = _row(deal, stream)
        events = _WRITABLE if word(row, Stream.LEAVES) else _READABLE
        # Who is waited for in no way may have left already: poll would come back at once, again and again.
        set_word(entries, stream, _NOBODY if _is_idle(row) else word(row, Stream.DESCRIPTOR) | events)
    return poll_all(entries, count, word(deal, Transfer.SLEEP_MS))
