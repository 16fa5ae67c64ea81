"""All-reduce in one compiled call: in shared memory where the tensors lie, or through the slots.

Sums are always in rank order, one operation after the other, so the way that is taken changes no bit.
"""

from typing import Any

from numba.extending import register_jitable

from gradtide.even_share import even_share
from gradtide.kernels.atomics import call_block, copy, set_word, word
from gradtide.kernels.meeting import all_reached, all_sign, line_of, show, slot_of
from gradtide.kernels.words import BUFFERS, DONE, MISMATCHED, WAITING, Line, Me, Plan, Row

__all__ = ["all_reduce", "reduce_rows", "reduce_sources"]

_BLOCK_BYTES = 8192  # three ranks and more: a reduction works through blocks that stay in the first-level cache
_ALIGN_BYTES = 64  # parts begin on cache lines, so that two ranks never write the same one
# Phases of an all-reduce: not begun; at the first meeting, which says how it is done; a piece shown in the slots;
# a piece reduced by parts; reduced where it lies.
_NEW, _FIRST, _SHOWN, _SPLIT, _IN_PLACE = 0, 1, 2, 3, 4

_even_share = register_jitable(even_share)


def all_reduce(plan: Any, tensor: Any) -> Any:
    """The tensor of every rank, at this address, becomes the reduction of all."""
    me = word(plan, Plan.ME)
    if word(me, Me.PHASE) == _NEW:
        _arrive(me, plan, tensor)
        set_word(me, Me.PHASE, _FIRST)
    if word(me, Me.PHASE) == _FIRST:
        code = _first_meeting(me, plan, tensor)
        if code != DONE:
            return code
    if word(me, Me.PHASE) != _IN_PLACE:
        return _staged(me, plan, tensor)
    if not all_reached(me, word(me, Me.SEQUENCE) + 1):
        return WAITING
    return _ended(me, word(me, Me.SEQUENCE) + 1)


def reduce_sources(me: Any, target: Any, count: Any, item: Any, combine: Any, last: Any) -> Any:
    """target = the sources that ME names, in rank order."""
    reduce_rows(me, 0, target, count, item, combine, last)
    return DONE


@register_jitable
def _ended(me: Any, sequence: Any) -> Any:
    set_word(me, Me.PHASE, _NEW)
    set_word(me, Me.PIECE, 0)
    set_word(me, Me.SEQUENCE, sequence)
    return DONE


@register_jitable
def _arrive(me: Any, plan: Any, tensor: Any) -> None:
    """A tensor in memory that all see is announced; of any other the first piece is shown."""
    sequence = word(me, Me.SEQUENCE) + 1
    line, version = line_of(me, word(me, Me.RANK)), sequence % BUFFERS
    segment, offset, shown = 0, 0, _piece_bytes(me, plan, 0)
    if word(plan, Plan.COUNT) * word(plan, Plan.ITEM) >= word(me, Me.IN_PLACE_BYTES):
        row = _row_of(me, tensor)
        if row:
            segment, offset, shown = word(row, Row.NUMBER), tensor - word(row, Row.BEGIN), 0
    set_word(line, Line.SEGMENT + version, segment)
    set_word(line, Line.OFFSET + version, offset)
    show(me, sequence, word(plan, Plan.SIGNATURE), tensor, shown)


@register_jitable
def _row_of(me: Any, tensor: Any) -> Any:
    """The address of the row of the memory that a tensor lies in, or 0."""
    for number in range(word(me, Me.ROWS)):
        row = word(me, Me.SEGMENTS) + 8 * Row.WORDS * number
        if word(row, Row.BEGIN) <= tensor < word(row, Row.END):
            return row
    return 0


@register_jitable
def _first_meeting(me: Any, plan: Any, tensor: Any) -> Any:
    """Once everybody has arrived, all see the same and decide the same."""
    sequence, signature = word(me, Me.SEQUENCE) + 1, word(plan, Plan.SIGNATURE)
    if not all_reached(me, sequence):
        return WAITING
    if not all_sign(me, sequence, signature):
        _ended(me, sequence)
        return MISMATCHED
    segment, alike, version = word(line_of(me, 0), Line.SEGMENT + sequence % BUFFERS), True, sequence % BUFFERS
    for rank in range(1, word(me, Me.SIZE)):
        alike = alike and word(line_of(me, rank), Line.SEGMENT + version) == segment
    if alike and segment:
        set_word(me, Me.SEQUENCE, sequence)
        _aim_at_segment(me, _row_of(me, tensor), version)
        _reduce_in_place(me, plan)
        show(me, sequence + 1, signature, 0, 0)
        set_word(me, Me.PHASE, _IN_PLACE)
        return DONE
    if not alike:  # some lie in memory that all see and some don't: all go through the slots, beginning anew
        set_word(me, Me.SEQUENCE, sequence)
        show(me, sequence + 1, signature, tensor, _piece_bytes(me, plan, 0))
    set_word(me, Me.PHASE, _SHOWN)
    return DONE


# --- Where the tensors lie ---


@register_jitable
def _aim_at_segment(me: Any, row: Any, version: Any) -> None:
    for rank in range(word(me, Me.SIZE)):
        part = word(row, Row.FIRST) + rank * word(row, Row.PART_BYTES)
        set_word(me, Me.SOURCES + rank, part + word(line_of(me, rank), Line.OFFSET + version))


@register_jitable
def _reduce_in_place(me: Any, plan: Any) -> None:
    """This rank's part of all tensors: reduced in the first rank's, and written to the others while it is in the cache.

    The last operation writes two at once: with two ranks that is one pass over memory.
    """
    ranks, item = word(me, Me.SIZE), word(plan, Plan.ITEM)
    begin, end = _part(word(plan, Plan.COUNT), word(me, Me.RANK), ranks, item)
    block = end - begin if ranks == 2 else _BLOCK_BYTES // item
    for at in range(begin, end, max(1, block)):
        length, first = min(block, end - at), word(me, Me.SOURCES) + at * item
        for rank in range(1, ranks - 1):
            source = word(me, Me.SOURCES + rank) + at * item
            call_block(word(plan, Plan.COMBINE), first, first, source, 0, length, ranks)
        if ranks > 1:
            source = word(me, Me.SOURCES + ranks - 1) + at * item
            call_block(word(plan, Plan.LAST), first, first, source, source, length, ranks)
        for rank in range(1, ranks - 1):
            copy(word(me, Me.SOURCES + rank) + at * item, first, length * item)


@register_jitable
def _part(count: Any, rank: Any, ranks: Any, item: Any) -> Any:
    """Where a rank's part begins and ends: even, on cache lines."""
    return _even_share(count, rank, ranks, max(1, _ALIGN_BYTES // item))


# --- Through the slots ---


@register_jitable
def _piece_bytes(me: Any, plan: Any, piece: Any) -> Any:
    """The bytes of a piece; 0 or less after the last."""
    whole = word(me, Me.PIECE_BYTES)
    return min(whole, word(plan, Plan.COUNT) * word(plan, Plan.ITEM) - piece * whole)


@register_jitable
def _staged(me: Any, plan: Any, tensor: Any) -> Any:
    """A piece at a time.

    Whole: every rank reduces the piece for itself, so a piece is one meeting; the next piece is shown before this
    one is reduced, so nobody waits for a slow reader. Split (three ranks and more, large pieces): each rank reduces its
    part in the first rank's slot, they meet again, and everybody copies the piece out.
    """
    whole, signature = word(me, Me.PIECE_BYTES), word(plan, Plan.SIGNATURE)
    split = word(me, Me.SIZE) > 2 and _piece_bytes(me, plan, 0) >= word(me, Me.SPLIT_BYTES)
    first, meetings = word(me, Me.SEQUENCE) + 1, 2 if split else 1
    pieces = max(1, (word(plan, Plan.COUNT) * word(plan, Plan.ITEM) + whole - 1) // whole)
    for piece in range(word(me, Me.PIECE), pieces):
        set_word(me, Me.PIECE, piece)
        sequence, here = first + piece * meetings, tensor + piece * whole
        length, following = _piece_bytes(me, plan, piece), _piece_bytes(me, plan, piece + 1)
        if word(me, Me.PHASE) == _SHOWN:
            if not all_reached(me, sequence):
                return WAITING
            if split:
                _reduce_part(me, plan, sequence, length)
                show(me, sequence + 1, signature, 0, 0)
                set_word(me, Me.PHASE, _SPLIT)
            else:
                if following > 0:
                    show(me, sequence + 1, signature, here + length, following)
                _reduce_whole(me, plan, sequence, here, length)
        if split:
            if not all_reached(me, sequence + 1):
                return WAITING
            if following > 0:
                show(me, sequence + 2, signature, here + length, following)
            copy(here, slot_of(me, 0, sequence), length)
            set_word(me, Me.PHASE, _SHOWN)
    return _ended(me, first + pieces * meetings - 1)


@register_jitable
def _aim_at_slots(me: Any, sequence: Any) -> None:
    for rank in range(word(me, Me.SIZE)):
        set_word(me, Me.SOURCES + rank, slot_of(me, rank, sequence))


@register_jitable
def _reduce_part(me: Any, plan: Any, sequence: Any, size_bytes: Any) -> None:
    item = word(plan, Plan.ITEM)
    begin, end = _part(size_bytes // item, word(me, Me.RANK), word(me, Me.SIZE), item)
    target = slot_of(me, 0, sequence) + begin * item
    _aim_at_slots(me, sequence)
    reduce_rows(me, begin * item, target, end - begin, item, word(plan, Plan.COMBINE), word(plan, Plan.LAST))


@register_jitable
def _reduce_whole(me: Any, plan: Any, sequence: Any, target: Any, size_bytes: Any) -> None:
    """The first two ranks read their own tensor where it is: the first operation takes it before it is overwritten."""
    item = word(plan, Plan.ITEM)
    _aim_at_slots(me, sequence)
    if word(me, Me.RANK) < 2:
        set_word(me, Me.SOURCES + word(me, Me.RANK), target)
    reduce_rows(me, 0, target, size_bytes // item, item, word(plan, Plan.COMBINE), word(plan, Plan.LAST))


@register_jitable
def reduce_rows(me: Any, skip: Any, target: Any, count: Any, item: Any, combine: Any, last: Any) -> None:
    """target = the sources in rank order, from so many bytes on, one operation after the other."""
    ranks = word(me, Me.SIZE)
    if ranks == 1 and target != word(me, Me.SOURCES) + skip:
        copy(target, word(me, Me.SOURCES) + skip, count * item)
    block = max(1, count) if ranks == 2 else _BLOCK_BYTES // item
    for begin in range(0, count, block):
        length, at, out = min(block, count - begin), skip + begin * item, target + begin * item
        for rank in range(1, ranks):
            left = word(me, Me.SOURCES) + at if rank == 1 else out
            function = last if rank == ranks - 1 else combine
            call_block(function, out, left, word(me, Me.SOURCES + rank) + at, 0, length, ranks)
