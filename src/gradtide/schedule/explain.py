"""Says in plain words why the best strategy is the best, and where the next one loses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradtide.schedule.model import Schedule
from gradtide.topology.units import format_size

if TYPE_CHECKING:
    from gradtide.schedule.plan import Candidate

__all__ = ["PLAN_HEADS", "explain", "plan_cells", "short_seconds", "short_size"]

PLAN_HEADS = ("strategy", "time", "bandwidth", "× bound", "busiest link", "on the wire", "steps")

CLOSE = 1.0005  # times closer than that are shown, and so called, the same


def plan_cells(table: "Sequence[Candidate]", bound_seconds: float) -> list[tuple[str, ...]]:
    """Of the table that is shown: the winner first, the bound last."""
    cells: list[tuple[str, ...]] = []
    for row in table:
        times = (short_seconds(row.seconds), short_seconds(row.bandwidth_seconds), f"{row.ratio:.3f}")
        cells.append((row.name, *times, row.busiest_link, short_size(row.wire_bytes), str(row.steps)))
    return [*cells, ("lower bound", "", short_seconds(bound_seconds), "1.000", "", "", "")]


def explain(table: "Sequence[Candidate]", bound_seconds: float) -> str:
    best = table[0]
    above = best.seconds / bound_seconds - 1
    distance = "the lower bound itself" if above < 0.0005 else f"{above:.1%} above the lower bound"
    if 1 < above <= 9:
        distance = f"{above + 1:.1f} times the lower bound"
    elif above > 9:
        distance = f"where bytes alone would take {short_seconds(bound_seconds)}"
    if not best.exact:
        distance += " (an estimate: the machines are not quite alike)"
    text = f"{best.name} is best with {short_seconds(best.seconds)}, {distance}: {_reason(best)}"
    other = next((row for row in table if not _same_way(row, best)), None)
    return f"{text}; {_loss(other, best)}." if other else f"{text}."


def _same_way(row: "Candidate", best: "Candidate") -> bool:
    """The same ops under another name: `rings` where there is only one ring."""
    if not (isinstance(row.made, Schedule) and isinstance(best.made, Schedule)):
        return row is best
    return row.made.ops == best.made.ops and row.made.weights == best.made.weights


def _reason(best: "Candidate") -> str:
    waits_s, latency_s = best.bandwidth_seconds - best.busiest_seconds, best.seconds - best.bandwidth_seconds
    if latency_s > best.seconds / 2:
        return f"at this size latency counts most, and it needs only {_steps(best)}"
    carried = f"its busiest link, {best.busiest_link}, is busy {_share(best)} of that time"
    if best.busiest_seconds > best.seconds * 0.95:
        return carried
    rest = [f"the latency of {_steps(best)}"] if latency_s * 4 > waits_s else []
    rest += ["the wait until all links have work"] if waits_s * 4 > latency_s else []
    return f"{carried}, and the rest is {' and '.join(rest)}"


def _loss(other: "Candidate", best: "Candidate") -> str:
    """What most of the difference is: bytes (on the busiest link, or on links that wait), or latency."""
    if other.seconds <= best.seconds * CLOSE:
        return f"{other.name} is as good within {CLOSE - 1:.2%}"
    head = f"next comes {other.name} with {short_seconds(other.seconds)}, because"
    bytes_s = other.bandwidth_seconds - best.bandwidth_seconds
    if bytes_s >= (other.seconds - best.seconds) / 2:
        busier_s = other.busiest_seconds - best.busiest_seconds
        if busier_s > bytes_s / 2 or (busier_s > bytes_s / 4 and other.busiest_seconds > 0.9 * other.seconds):
            return f"{head} it keeps {other.busiest_link} busy for {short_seconds(other.busiest_seconds)}"
        return (
            f"{head} its links wait for each other: the busiest, {other.busiest_link}, has work {_share(other)} of it"
        )
    if other.steps > best.steps:
        return f"{head} it takes {_steps(other)}"
    latency_s = other.seconds - other.bandwidth_seconds
    return f"{head} the latency of its {_steps(other)} adds up to {short_seconds(latency_s)}: they go further"


def _steps(row: "Candidate") -> str:
    return f"{row.steps} step{'' if row.steps == 1 else 's'}"


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
