"""In which order each row computes: one function an order, `ORDERS` has them by name.

Each gives, for every row, its turns of all micro-batches. Gradients of a stage are always added up in the order of the
micro-batches, so every order gives the same bits.
"""

from collections.abc import Callable, Iterator

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.depth_first import depth_first
from gradtide.schedule.step.build.rows import Rows, StageTurn, TurnKind, turns

__all__ = ["ORDERS", "Orderer"]

Orderer = Callable[[Rows, int], list[list[StageTurn]]]


def gpipe(rows: Rows, micros: int) -> list[list[StageTurn]]:
    """All forwards, then all backwards."""
    found = []
    for row in range(rows.count):
        mine = rows.of(row)
        forward = [turn for block in mine for micro in range(micros) for turn in turns(rows, "forward", block, micro)]
        back = [
            turn for block in mine[::-1] for micro in range(micros) for turn in turns(rows, "backward", block, micro)
        ]
        found.append(forward + back)
    return found


def one_forward_one_backward(rows: Rows, micros: int) -> list[list[StageTurn]]:
    """As many forwards as there are rows from here to the end, then backward and forward in turn."""
    if len(rows.blocks) > rows.count:
        return depth_first(rows, micros)
    return [
        [
            turn
            for kind, micro in _alternating(min(micros, rows.count - row), micros, micros, "backward")
            for turn in turns(rows, kind, rows.of(row)[0], micro)
        ]
        for row in range(rows.count)
    ]


def interleaved(rows: Rows, micros: int) -> list[list[StageTurn]]:
    """Several blocks a row, dealt round-robin: micro-batches go through in groups as large as there are rows.

    After Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021), section 2.2.
    """
    count, share = rows.count, len(rows.blocks) // rows.count
    if not rows.round_robin:
        raise ScheduleError(
            f"interleaved: needs stages dealt round-robin, the same number to each of {count} rows of devices; these "
            f"go to rows {', '.join(map(str, rows.row))}; deal them so, or take 1f1b"
        )
    if share == 1:
        return one_forward_one_backward(rows, micros)
    if micros % count:
        fits = ", ".join(str(near) for near in (micros - micros % count, micros + count - micros % count) if near)
        raise ScheduleError(f"interleaved: {micros} micro-batches can't go in groups of {count} rows; take {fits}")
    groups = [range(first, first + count) for first in range(0, micros, count)]
    found = []
    for row in range(count):
        mine = rows.of(row)
        forward = [(block, micro) for group in groups for block in mine for micro in group]
        back = [(block, micro) for group in groups for block in mine[::-1] for micro in group]
        ahead = min(len(forward), 2 * (count - row - 1) + (share - 1) * count + 1)
        order: list[StageTurn] = []
        for kind, at in _alternating(ahead, len(forward), len(back), "backward"):
            order += turns(rows, kind, *(forward if kind == "forward" else back)[at])
        found.append(order)
    return found


def zero_bubble(rows: Rows, micros: int) -> list[list[StageTurn]]:
    """As 1f1b, but backward in two: row r puts r micro-batches' gradients of parameters off, to fill its waiting.

    After Qi et al., "Zero Bubble Pipeline Parallelism" (2023), ZB-H1: no more memory than 1f1b.
    """
    if len(rows.blocks) > rows.count:
        raise ScheduleError(
            f"zero-bubble: needs consecutive stages on each row of devices, but {len(rows.blocks)} groups of them go "
            f"to {rows.count} rows; take interleaved or 1f1b"
        )
    found = []
    for row in range(rows.count):
        block, order = rows.of(row)[0], list[StageTurn]()
        for kind, micro in _alternating(min(micros, rows.count - row), micros, micros, "inputs"):
            order += turns(rows, kind, block, micro)
            if kind == "inputs" and micro >= row:
                order += turns(rows, "weights", block, micro - row)
        for micro in range(max(0, micros - row), micros):
            order += turns(rows, "weights", block, micro)
        found.append(order)
    return found


def _alternating(ahead: int, forwards: int, backwards: int, back: TurnKind) -> Iterator[tuple[TurnKind, int]]:
    """So many forwards ahead, then one backward and one forward in turn, then the backwards that are left."""
    yield from (("forward", at) for at in range(ahead))
    for at in range(backwards):
        yield back, at
        if ahead + at < forwards:
            yield "forward", ahead + at


ORDERS: dict[str, Orderer] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}
