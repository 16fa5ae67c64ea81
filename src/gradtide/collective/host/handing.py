"""What the ranks of a host hand each other at meetings, as plain data; kernels/handing.py says how it runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gradtide.collective.host.board import SLOT_BYTES, Board
from gradtide.collective.host.extents import NOTHING, Adding, Extent
from gradtide.kernels import HandEntry, HandKind, HandPlan

__all__ = ["CopiedRow", "Entry", "Hand", "ShownRow", "SummedRow", "TakenRow", "hand_words", "trade"]

_ALIGN_BYTES = 64
_NOWHERE = NOTHING.base, NOTHING.offset


@dataclass(frozen=True, slots=True)
class ShownRow:
    """What this rank shows in a row."""

    row: int
    what: Extent


@dataclass(frozen=True, slots=True)
class TakenRow:
    """What this rank takes from a row of another one's, so far into the row."""

    source: int
    row: int
    skip: int
    to: Extent


@dataclass(frozen=True, slots=True)
class SummedRow:
    """A row of all ranks, added up in their order. This rank's own is read where it lies."""

    row: int
    own: Extent
    to: Extent


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """What stays with this rank."""

    what: Extent
    to: Extent


Entry = ShownRow | TakenRow | SummedRow | CopiedRow


@dataclass(frozen=True, slots=True)
class Hand:
    """One meeting or more. rows and widest (bytes of a row) are the same on every rank of the host."""

    rows: int = 1
    widest: int = 0
    entries: Sequence[Entry] = field(default_factory=tuple)
    blocks: Adding | None = None  # for what is added up


def trade(ranks: Sequence[int], me: int, leaving: Sequence[Extent], arriving: Sequence[Extent]) -> list[Entry]:
    """From each rank of a host to each. ranks: what those of the host are called; leaving, arriving: by those names."""
    entries: list[Entry] = [CopiedRow(leaving[ranks[me]], arriving[ranks[me]])]
    for local, rank in enumerate(ranks):
        if local != me:
            entries += [ShownRow(local, leaving[rank]), TakenRow(local, me, 0, arriving[rank])]
    return entries


def hand_words(board: Board, hand: Hand) -> npt.NDArray[np.int64]:
    """The words that the kernel takes; all but the signature."""
    piece = max(_ALIGN_BYTES, SLOT_BYTES // hand.rows // _ALIGN_BYTES * _ALIGN_BYTES)
    assert hand.rows * piece <= SLOT_BYTES, f"{hand.rows} rows do not fit into a slot"
    entries = [_words(entry) for entry in hand.entries]
    words = np.zeros(HandPlan.WORDS + HandEntry.WORDS * len(entries), np.int64)
    words[HandPlan.ME], words[HandPlan.ENTRIES] = board.me, len(entries)
    words[HandPlan.PIECES], words[HandPlan.PIECE_BYTES] = max(1, -(-hand.widest // piece)), piece
    if hand.blocks is not None:
        words[[HandPlan.COMBINE, HandPlan.LAST]] = hand.blocks.combine, hand.blocks.last
        words[HandPlan.ITEM] = hand.blocks.item_bytes
    words[HandPlan.FIRST :] = [word for entry in entries for word in entry]
    return words


def _words(entry: Entry) -> Iterable[int]:
    """In the order of HandEntry."""
    match entry:
        case ShownRow(row, what):
            return HandKind.SHOW, 0, row, 0, what.base, what.offset, *_NOWHERE, what.size_bytes
        case TakenRow(source, row, skip, to):
            return HandKind.TAKE, source, row, skip, *_NOWHERE, to.base, to.offset, to.size_bytes
        case SummedRow(row, own, to):
            return HandKind.SUM, 0, row, 0, own.base, own.offset, to.base, to.offset, to.size_bytes
        case CopiedRow(what, to):
            return HandKind.COPY, 0, 0, 0, what.base, what.offset, to.base, to.offset, to.size_bytes
