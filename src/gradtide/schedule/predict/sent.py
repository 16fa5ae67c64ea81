"""How much each process sends to each other by a schedule."""

from collections import defaultdict

from gradtide.schedule.model import Schedule

__all__ = ["bytes_sent"]


def bytes_sent(schedule: Schedule, size_bytes: int, process: int, processes: int) -> dict[int, float]:
    """By whom it is sent to. Rank r of a schedule runs in process r % processes, as executors place it."""
    total, sent = sum(schedule.weights), defaultdict[int, float](float)
    for op in schedule.ops:
        source, target = op.src % processes, op.dst % processes
        if source == process != target:
            sent[target] += size_bytes * schedule.weights[op.chunk] / total
    return dict(sent)
