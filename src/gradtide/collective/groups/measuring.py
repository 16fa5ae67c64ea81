"""Measures collectives between hosts, as they go without a schedule: how many flows are best, and how long they take.

Rank 0 looks at the clock and says how often. What was found is remembered for these hosts.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from gradtide.collective.groups.probing import remember
from gradtide.environment import read_environment
from gradtide.schedule.predict.exchange_model import ExchangeModel, busiest_bytes

if TYPE_CHECKING:
    from gradtide.collective.groups.group import Group

__all__ = ["measure_exchange"]

Work = Callable[[], object]
_ALL_S = 0.4  # for collectives, all in all; the rest of half a second is for what goes around them
_SIZES = (64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
_BURST_BYTES, _QUICK_S = 256 << 10, 0.04  # a token bucket may let so much pass: the next size counts, if it is quick
_LEAST_SIZES, _LEAST, _ROWS, _MOST_IN_A_ROW = 4, 3, 5, 64
_OTHERS_S = 0.08  # of it, for other operations than all_reduce
_OTHERS_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_FLOWS = (2, 4, 8)  # to be tried, while each is quicker than the last
_FLOWS_BYTES, _FLOWS_TIMES, _SLOW_TIMES, _SLOW_S = (256 << 10, 1 << 20), 5, 3, 5e-3
_QUICKER, _QUICKER_AT_ALL = 0.75, 0.85  # more flows must take so little of the time of fewer
_CORE_BYTES_PER_S = 6e8  # each way


def measure_exchange(group: "Group", ranks: tuple[int, ...]) -> ExchangeModel:
    """As collectives without a strategy find them. ranks: of each host. The group then uses the best number of flows,
    unless rank 0 was told how many (GRADTIDE_FLOWS)."""
    asked = _as_rank_0_says(group, read_environment().flows)
    model = remember(group, f"exchange over {asked} flows", True, lambda: _probe(group, ranks, asked))
    if group.flows != model.flows:
        group.use_flows(model.flows)
    return model


def _probe(group: "Group", ranks: tuple[int, ...], asked: int) -> ExchangeModel:
    until = time.perf_counter() + _ALL_S
    _in_a_row(lambda: group.all_reduce(torch.zeros(1)), 2)  # what is done once is not what takes the time
    if not asked:
        _choose_flows(group, 4 // min(ranks))
    found = _all_reduces(group, ranks, until - _OTHERS_S)
    moved, seconds = zip(*group.broadcast(torch.tensor(found, dtype=torch.float64)).tolist(), strict=True)
    shortest = [min(seconds[number:]) for number in range(len(seconds))]  # what else the machine does makes them longer
    model = ExchangeModel(ranks, tuple(zip(moved, shortest, strict=True)), flows=group.flows)
    return model.corrected(_others(group, model, until))


# --- Flows ---


def _choose_flows(group: "Group", most: int) -> None:
    """More, if they are clearly quicker than fewer: on a wire that lets each flow have only a part of it, or on one so
    long that a flow's buffers do not fill it. Not where one flow moves what a core can move: one thread serves them
    all. most: 1 where hosts have many ranks, and so many flows as it is."""
    if group.flows != 1:
        group.use_flows(1)
    small, large = (torch.zeros(size // 4) for size in _FLOWS_BYTES)
    once_s = min(_in_a_row(lambda: group.all_reduce(small), 1) for _ in range(3))
    is_slow = bool(_as_rank_0_says(group, once_s > _SLOW_S))
    if most < 2 or (not is_slow and _fills_a_core(group, large)):
        return
    best = 1
    for more in _FLOWS:
        if not _is_quicker(group, small if is_slow else large, more, best, _SLOW_TIMES if is_slow else _FLOWS_TIMES):
            break
        best = more
    group.use_flows(best)


def _fills_a_core(group: "Group", tensor: torch.Tensor) -> bool:
    taken_s = min(_in_a_row(lambda: group.all_reduce(tensor), 1) for _ in range(2))
    return bool(_as_rank_0_says(group, tensor.nbytes / taken_s > _CORE_BYTES_PER_S))


def _is_quicker(group: "Group", tensor: torch.Tensor, more: int, fewer: int, times: int) -> bool:
    """In turns. Clearly by the shortest of each, and at every turn: what else the machine does changes some."""
    shortest = {fewer: math.inf, more: math.inf}
    for _ in range(times):
        taken_s = {}
        for flows in shortest:
            group.use_flows(flows, keep=True)
            taken_s[flows] = _in_a_row(lambda: group.all_reduce(tensor), 1)
            shortest[flows] = min(shortest[flows], taken_s[flows])
        if not _as_rank_0_says(group, taken_s[more] < _QUICKER_AT_ALL * taken_s[fewer]):
            return False
    return bool(_as_rank_0_says(group, shortest[more] < _QUICKER * shortest[fewer]))


# --- How long they take ---


def _all_reduces(group: "Group", ranks: tuple[int, ...], until: float) -> list[tuple[float, float]]:
    """All-reduces of rising sizes: what the busiest host moves, and seconds. Each size has its share of the time, and
    one that would take too long, and all above it, are left out."""
    samples = list[tuple[float, float]]()
    for size, above in zip(_SIZES, (*_SIZES[1:], 0), strict=True):
        share_s = (until - time.perf_counter()) / (2 + above / size)
        found_s = _steady(group, partial(group.all_reduce, torch.zeros(size // 4)), share_s)
        samples.append((busiest_bytes("all_reduce", ranks, size), found_s))
        next_s = found_s * above / size
        there_is_time = 3.2 * next_s < until - time.perf_counter() or (size == _BURST_BYTES and next_s < _QUICK_S)
        if not _as_rank_0_says(group, above and (there_is_time or len(samples) < _LEAST_SIZES)):
            break
    return samples


def _others(group: "Group", model: ExchangeModel, until: float) -> list[tuple[str, int, float]]:
    """Other operations at some sizes, as far as there is time: which, bytes, and the seconds of the slowest rank. They
    spend their time otherwise: on Python, on copies of what is a rank's own, on one direction only."""
    found = []
    for number, size in enumerate(_OTHERS_SIZES):
        works = _works(group, size)
        once_s = sum(model.seconds(operation, size) for operation in works)
        if not _as_rank_0_says(group, (_LEAST + 1) * once_s < until - time.perf_counter()):
            break
        share_s = (until - time.perf_counter()) / (len(_OTHERS_SIZES) - number)
        taken = _in_turns(group, works, once_s, share_s)
        found += [(operation, size, seconds) for operation, seconds in zip(works, taken, strict=True)][1:]
    return found


def _in_turns(group: "Group", works: Mapping[str, Work], once_s: float, share_s: float) -> list[float]:
    """Seconds of each, the shortest of some rows. Each has its row in turn: what else the machine does for a while does
    not make one of them look slow. once_s: how long all should take."""
    until, times = time.perf_counter() + share_s, _as_rank_0_says(group, share_s / (_ROWS * once_s))
    times = max(1, min(_MOST_IN_A_ROW, times))
    for work in works.values():
        _in_a_row(
            work, times
        )  # what is done once is not what takes the time, nor is what a full token bucket lets pass
    rows = [[_in_a_row(work, times) for work in works.values()]]
    while _as_rank_0_says(group, len(rows) < 2 * _ROWS and time.perf_counter() < until):
        rows.append([_in_a_row(work, times) for work in works.values()])
    slowest = group.all_reduce(torch.tensor(rows, dtype=torch.float64), "max")
    return slowest.min(0).values.tolist()  # type: ignore[no-any-return]


def _works(group: "Group", size: int) -> dict[str, Work]:
    rows = torch.zeros(group.size, max(1, size // 4 // group.size))
    row, other, whole = rows[0].clone(), torch.zeros_like(rows), rows.view(-1)
    works: dict[str, Work] = {
        "all_reduce": lambda: group.all_reduce(whole),  # known by now, but it empties the token bucket of a wire
        "broadcast": lambda: group.broadcast(whole),
        "all_gather": lambda: group.all_gather(row, rows),
        "reduce_scatter": lambda: group.reduce_scatter(rows, out=row),
        "all_to_all": lambda: group.all_to_all(rows, other),
    }
    return works


def _steady(group: "Group", work: Work, share_s: float) -> float:
    """Seconds of one, in a row: a token bucket that was full is empty before it counts, and gets nothing in pauses.

    How many there is time for is known from the first ones; how long rows take on a busy machine is not.
    """
    until = time.perf_counter() + share_s
    _in_a_row(work, 1)
    once_s = min(_in_a_row(work, 1) for _ in range(2))
    count = _as_rank_0_says(group, max(0, min(_ROWS * _MOST_IN_A_ROW, (until - time.perf_counter()) / once_s)))
    if count < _ROWS * _LEAST:
        return _in_a_row(work, count) if count > 1 else once_s
    rows = [_in_a_row(work, count // _ROWS)]
    while _as_rank_0_says(group, len(rows) < _ROWS and time.perf_counter() < until):
        rows.append(_in_a_row(work, count // _ROWS))
    return min(rows)  # what else the machine does makes them longer


def _as_rank_0_says(group: "Group", number: float) -> int:
    return int(group.broadcast(torch.tensor([int(number)])).item())


def _in_a_row(work: Work, times: int) -> float:
    """Seconds of each."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times
