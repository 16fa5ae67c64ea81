"""Says in plain words why the best strategy is the best, and where the next one loses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradtide.topology.units import format_size

if TYPE_CHECKING:
    from gradtide.schedule.plan import Candidate

__all__ = ["explain", "short_seconds", "short_size"]

CLOSE = 1.0005  # times closer than that are shown, and so called, the same


def explain(table: "Sequence[Candidate]", bound_seconds: float) -> str:
    best = table[0]
    above = best.seconds / bound_seconds - 1
    distance = "the lower bound itself" if above < 0.0005 else f"{above:.1%} above the lower bound"
    if 1 < above <= 9:
        distance = f"{above + 1:.1f} times the lower bound"
    elif above > 9:
        distance = f"where bytes alone would take {short_seconds(bound_seconds)}"
    text = f"{best.name} is best with {short_seconds(best.seconds)}, {distance}: {_reason(best)}"
    other = next((row for row in table if not _same_way(row, best)), None)
    return f"{text}; {_loss(other, best)}." if other else f"{text}."


def _same_way(row: "Candidate", best: "Candidate") -> bool:
    """The same ops under another name: `rings` where there is only one ring."""
    return row.schedule.ops == best.schedule.ops and row.schedule.weights == best.schedule.weights


def _reason(best: "Candidate") -> str:
    if best.busiest_seconds < best.seconds / 2:
        return f"at this size latency counts most, and it needs only {best.steps} steps"
    carried = f"its busiest link, {best.busiest_link}, is busy {_share(best)} of that time"
    if best.busiest_seconds > best.seconds * 0.95:
        return carried
    return f"{carried}, and the rest is the latency of {best.steps} steps and the wait until all links have work"


def _loss(other: "Candidate", best: "Candidate") -> str:
    if other.seconds <= best.seconds * CLOSE:
        return f"{other.name} is as good within {CLOSE - 1:.2%}"
    head = f"next comes {other.name} with {short_seconds(other.seconds)}, because"
    if other.busiest_seconds > best.busiest_seconds * CLOSE and other.busiest_seconds > other.seconds / 3:
        return f"{head} it keeps {other.busiest_link} busy for {short_seconds(other.busiest_seconds)}"
    if other.steps > best.steps:
        return f"{head} it takes {other.steps} steps"
    return f"{head} its links wait for each other: the busiest, {other.busiest_link}, has work {_share(other)} of it"


def _share(row: "Candidate") -> str:
    return f"{row.busiest_seconds / row.seconds:.0%}"


def short_seconds(seconds: float) -> str:
    """Four digits, for people: 15.01 ms."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor * 0.99995:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def short_size(size_bytes: float) -> str:
    """Four digits, for people: 960 MB."""
    return format_size(float(f"{size_bytes:.4g}"))
