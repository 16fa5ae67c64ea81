"""What ranks of a host hand each other through the slots, in one compiled call: rows are shown, taken or added up.

A slot has a piece of each row. Rows go through the slots a piece at a time: the next piece is shown before this one is
taken, so nobody waits for a slow reader. Which rows there are and who takes what is data (collective/host/handing.py).
"""

from typing import Any

from numba.extending import register_jitable

from gradtide.kernels.atomics import copy, set_word, word
from gradtide.kernels.meeting import all_reached, all_sign, show, slot_of
from gradtide.kernels.reducing import reduce_rows
from gradtide.kernels.words import DONE, MISMATCHED, WAITING, HandEntry, HandKind, HandPlan, Me

__all__ = ["hand"]


def hand(plan: Any, tensor: Any, out: Any, scratch: Any) -> Any:
    """All that the plan says, on these addresses. PHASE is 1 while it waits. Nothing is taken before all ask for it."""
    me, pieces = word(plan, HandPlan.ME), word(plan, HandPlan.PIECES)
    first, signature = word(me, Me.SEQUENCE) + 1, word(plan, HandPlan.SIGNATURE)
    if word(me, Me.PHASE) == 0:
        _show(me, plan, 0, first, tensor, out, scratch)
        show(me, first, signature, 0, 0)
        set_word(me, Me.PHASE, 1)
    for piece in range(word(me, Me.PIECE), pieces):
        set_word(me, Me.PIECE, piece)
        if not all_reached(me, first + piece):
            return WAITING
        if piece == 0 and not all_sign(me, first, signature):
            return _ended(me, first, MISMATCHED)
        if piece + 1 < pieces:
            _show(me, plan, piece + 1, first + piece + 1, tensor, out, scratch)
            show(me, first + piece + 1, signature, 0, 0)
        _take(me, plan, piece, first + piece, tensor, out, scratch)
    return _ended(me, first + pieces - 1, DONE)


@register_jitable
def _ended(me: Any, sequence: Any, code: Any) -> Any:
    set_word(me, Me.PHASE, 0)
    set_word(me, Me.PIECE, 0)
    set_word(me, Me.SEQUENCE, sequence)
    return code


@register_jitable
def _at(base: Any, offset: Any, tensor: Any, out: Any, scratch: Any) -> Any:
    if base == 1:
        return tensor + offset
    return out + offset if base == 2 else scratch + offset


@register_jitable
def _entry(plan: Any, number: Any) -> Any:
    return plan + 8 * (HandPlan.FIRST + HandEntry.WORDS * number)


@register_jitable
def _source(entry: Any, tensor: Any, out: Any, scratch: Any) -> Any:
    return _at(word(entry, HandEntry.FROM_BASE), word(entry, HandEntry.FROM), tensor, out, scratch)


@register_jitable
def _show(me: Any, plan: Any, piece: Any, sequence: Any, tensor: Any, out: Any, scratch: Any) -> None:
    """Puts a piece of what this rank shows into its slot for a meeting."""
    width, slot = word(plan, HandPlan.PIECE_BYTES), slot_of(me, word(me, Me.RANK), sequence)
    for number in range(word(plan, HandPlan.ENTRIES)):
        entry = _entry(plan, number)
        length = min(width, word(entry, HandEntry.BYTES) - piece * width)
        if word(entry, HandEntry.KIND) == HandKind.SHOW and length > 0:
            source = _source(entry, tensor, out, scratch) + piece * width
            copy(slot + word(entry, HandEntry.ROW) * width, source, length)


@register_jitable
def _take(me: Any, plan: Any, piece: Any, sequence: Any, tensor: Any, out: Any, scratch: Any) -> None:
    """What this rank takes of the pieces that were shown at a meeting."""
    width = word(plan, HandPlan.PIECE_BYTES)
    for number in range(word(plan, HandPlan.ENTRIES)):
        entry = _entry(plan, number)
        kind, row = word(entry, HandEntry.KIND), word(entry, HandEntry.ROW) * width
        target = _at(word(entry, HandEntry.TO_BASE), word(entry, HandEntry.TO), tensor, out, scratch)
        if kind == HandKind.TAKE:
            skip = word(entry, HandEntry.SKIP)
            begin, end = max(skip, piece * width), min(skip + word(entry, HandEntry.BYTES), (piece + 1) * width)
            if end > begin:
                slot = slot_of(me, word(entry, HandEntry.SOURCE), sequence)
                copy(target + begin - skip, slot + row + begin - piece * width, end - begin)
        elif kind == HandKind.SUM:
            length = min(width, word(entry, HandEntry.BYTES) - piece * width)
            if length > 0:
                own = _source(entry, tensor, out, scratch) + piece * width
                _add_up(me, plan, sequence, row, own, target + piece * width, length)
        elif kind == HandKind.COPY and piece == 0:
            copy(target, _source(entry, tensor, out, scratch), word(entry, HandEntry.BYTES))


@register_jitable
def _add_up(me: Any, plan: Any, sequence: Any, row: Any, own: Any, target: Any, length: Any) -> None:
    for rank in range(word(me, Me.SIZE)):
        set_word(me, Me.SOURCES + rank, slot_of(me, rank, sequence) + row)
    set_word(me, Me.SOURCES + word(me, Me.RANK), own)
    item = word(plan, HandPlan.ITEM)
    reduce_rows(me, 0, target, length // item, item, word(plan, HandPlan.COMBINE), word(plan, HandPlan.LAST))
