"""What a group says of itself: which way its collectives go, how long they should take and have taken."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from gradtide.kernels import DONE
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.predict.exchange_model import ExchangeModel

__all__ = ["Now", "Timings", "explain_hosts"]

_KEPT = 31  # of each kind: their median is told
_KINDS = 1024
_SHOWN = 5
_EXAMPLES = (4 << 10, 1 << 20, 64 << 20)
Now = Callable[[Any, int], int]


class Timings:
    """How long the collectives of a group on several hosts took, the last few of each operation and size."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], deque[float]] = {}
        self._plans: dict[Hashable, deque[float]] = {}  # the same lists, by plan, as the backend takes it
        self._began = 0.0

    def note(self, operation: str, size_bytes: int, seconds: float) -> None:
        self._list(operation, size_bytes).append(seconds)

    def _list(self, operation: str, size_bytes: int) -> deque[float]:
        if len(self._taken) > _KINDS:
            self._taken.clear()
        return self._taken.setdefault((operation, size_bytes), deque(maxlen=_KEPT))

    def plan(self, address: Hashable, size_bytes: int) -> None:
        """From now on all_reduces of that size may go by this plan."""
        if len(self._plans) > _KINDS:
            self._plans.clear()
        self._plans[address] = self._list("all_reduce", size_bytes)

    def timed(self, now: Now) -> Now:
        """The shortest way, with a watch: two looks at the clock, a quarter of a microsecond."""
        plans, clock = self._plans, time.perf_counter

        def run(plan: Any, tensor: int) -> int:
            self._began = clock()
            code = now(plan, tensor)
            if code == DONE and plan in plans:
                plans[plan].append(clock() - self._began)
            return code

        return run

    def finished(self, plan: Hashable) -> None:
        """One that did not end at once has ended."""
        if plan in self._plans:
            self._plans[plan].append(time.perf_counter() - self._began)

    def medians(self) -> dict[tuple[str, int], tuple[float, int]]:
        """Of each operation and size, the median and how many it is of, those that move most first."""
        found = {kind: (median(taken), len(taken)) for kind, taken in list(self._taken.items()) if taken}
        return dict(sorted(found.items(), key=lambda item: (-item[0][1], item[0][0])))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in here is not the program's."""
        before = {kind: list(taken) for kind, taken in self._taken.items()}
        yield
        for kind, taken in self._taken.items():
            taken.clear()
            taken.extend(before.get(kind, ()))


def explain_hosts(ranks: tuple[int, ...], flows: int, model: ExchangeModel | None, timings: Timings) -> str:
    """One sentence on the way, one on the links, one on what was predicted and measured."""
    inside = ", shared memory inside" if max(ranks) > 1 else ""
    several = f", {flows} flows between each two ranks" if flows > 1 else ""
    parts = [
        f"between {len(ranks)} hosts each collective is one exchange over links of all hosts at once{several}{inside}"
    ]
    if model is None:
        parts.append("nothing is predicted before the links are measured: explain(probe=True), on all ranks")
    else:
        examples = ", ".join(
            f"{short_size(size)} {short_seconds(model.seconds('all_reduce', size))}" for size in _EXAMPLES
        )
        rate = f"{short_size(model.bytes_per_s)}/s of each host, {short_seconds(model.latency_s)} at least"
        parts.append(f"measured links: {rate}; predicted all_reduce: {examples}")
    for (operation, size), (seconds, count) in list(timings.medians().items())[:_SHOWN]:
        predicted = f"predicted {short_seconds(model.seconds(operation, size))}, " if model else ""
        parts.append(f"{operation} of {short_size(size)}: {predicted}measured {short_seconds(seconds)} (of {count})")
    return "; ".join(parts)
