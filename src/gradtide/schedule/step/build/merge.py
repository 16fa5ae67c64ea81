"""The turns of all rows in one order, which every row's own order and what turns wait for allow."""

import heapq
from collections import defaultdict
from collections.abc import Sequence

from gradtide.errors import ScheduleError
from gradtide.schedule.step.build.rows import StageTurn
from gradtide.schedule.step.shape import StepShape

__all__ = ["merge"]


def merge(shape: StepShape, rows: Sequence[Sequence[StageTurn]]) -> list[StageTurn]:
    """All turns by the time they could begin if sending took none; refused if some wait for each other in a circle."""
    waits = _waits(shape, rows)
    followers: dict[StageTurn, list[StageTurn]] = defaultdict(list)
    for turn, before in waits.items():
        for earlier in before:
            followers[earlier].append(turn)
    missing = {turn: len(before) for turn, before in waits.items()}
    begin: dict[StageTurn, float] = defaultdict(float)
    ready = [(0.0, turn.stage, turn) for turn, count in missing.items() if not count]
    heapq.heapify(ready)
    merged: list[StageTurn] = []
    while ready:
        now, _, turn = heapq.heappop(ready)
        merged.append(turn)
        for follower in followers[turn]:
            missing[follower] -= 1
            begin[follower] = max(begin[follower], now + _seconds(shape, turn))
            if not missing[follower]:
                heapq.heappush(ready, (begin[follower], follower.stage, follower))
    if len(merged) < len(waits):
        stuck = min(set(waits) - set(merged), key=lambda turn: (turn.micro, turn.stage))
        raise ScheduleError(
            f"{shape.order}: never gets to {stuck.kind} of stage {stuck.stage} for micro-batch {stuck.micro}: rows "
            "wait for each other in a circle"
        )
    return merged


def _waits(shape: StepShape, rows: Sequence[Sequence[StageTurn]]) -> dict[StageTurn, set[StageTurn]]:
    """What each turn waits for: the one before it on its row, what it reads, and the gradients it needs."""
    waits: dict[StageTurn, set[StageTurn]] = {}
    for order in rows:
        before: StageTurn | None = None
        for turn in order:
            if turn.kind != "forward" and not shape.stages[turn.stage].trained:
                continue
            waits[turn] = {before} if before else set()
            before = turn
    for turn in waits:
        waits[turn] |= {earlier for earlier in _reads(shape, turn) if earlier in waits}
    return waits


def _reads(shape: StepShape, turn: StageTurn) -> list[StageTurn]:
    kind, stage, micro = turn
    if kind == "weights":
        return [StageTurn("inputs", stage, micro)]
    if kind == "forward":
        return [
            StageTurn("forward", crossing.source, micro) for crossing in shape.crossings if crossing.target == stage
        ]
    below = [crossing.target for crossing in shape.crossings if crossing.source == stage and crossing.backward_bytes]
    return [StageTurn("forward", stage, micro), *(StageTurn(kind, target, micro) for target in below)]


def _seconds(shape: StepShape, turn: StageTurn) -> float:
    """Of the whole micro-batch on one device of speed 1: good enough to sort by."""
    stage = shape.stages[turn.stage]
    samples = -(-shape.micro_batches[turn.micro] // stage.copies)
    seconds = 0.0
    for segment in stage.segments:
        forward, backward = segment.forward.of(samples), segment.backward.of(samples)
        share = {"inputs": 1 - segment.for_weights, "weights": segment.for_weights}.get(turn.kind, 1.0)
        seconds += forward if turn.kind == "forward" else backward * share
        if stage.recompute and turn.kind in ("backward", "inputs"):
            seconds += forward
    return seconds
