"""How long steps take, and how much of it goes into synchronising: from the events of a model, while it trains."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from gradtide.events import Emit, Event, GradientsReady, GradientsSynchronised, ParametersUpdated, Waiting
from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.predict.less_often import StepForecast, forecast_step

__all__ = ["StepPace"]

_LEAST, _STEPS, _MEETINGS = 5, 100, 20
_USUAL = 50  # what is predicted for who steps together


class StepPace:
    """An observer that passes events on. A step goes from the end of one backward to that of the next."""

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.perf_counter) -> None:
        self._emit, self._clock = emit, clock
        self._begun_s: float | None = None  # this step
        self._since_s: float | None = None  # since when it synchronises
        self._synchronising_s = 0.0  # in this step
        self._own: deque[float] = deque(maxlen=_STEPS)  # steps without that
        self._meetings: deque[float] = deque(maxlen=_MEETINGS)
        self._bytes = 0

    def observe(self, event: Event) -> None:
        self._note(event)
        self._emit(event)

    def _note(self, event: Event) -> None:
        kind = type(event)
        if kind is GradientsReady:
            now_s = self._clock()
            if self._begun_s is not None:
                self._own.append(now_s - self._begun_s - self._synchronising_s)
            self._begun_s = self._since_s = now_s
            self._synchronising_s = 0.0
        elif kind is Waiting and self._since_s is None:
            self._since_s = self._clock()
        elif isinstance(event, GradientsSynchronised):
            if event.wire_bytes and self._since_s is not None:
                self._meetings.append(self._clock() - self._since_s)
                self._synchronising_s += self._meetings[-1]
                self._bytes = event.wire_bytes
            self._since_s = None
        elif kind is ParametersUpdated:
            if self._since_s is not None and self._synchronising_s:  # a second wait, until all have stepped
                self._synchronising_s += self._clock() - self._since_s
                self._meetings[-1] = self._synchronising_s
            self._since_s = None

    def forecast(self, every: int | None) -> StepForecast | None:
        """By what was measured; None before a few steps, or while nobody has met. `every`: of local steps."""
        if len(self._own) < _LEAST or not self._meetings:
            return None
        own_s = max(median(self._own), 1e-9)
        return forecast_step(own_s, median(self._meetings), self._bytes, every or _USUAL, overlap=False)

    def explain(self, every: int | None) -> list[str]:
        """What synchronising takes, and would take otherwise, in a sentence; nothing while that is not known."""
        found = self.forecast(every)
        if found is None:
            return []
        if every is None:
            return [f"measured so far, waiting for others included: {found.explain()}"]
        meeting, worth = (
            found.together_s - found.alone_s,
            "" if found.is_worth_it else "; that is not worth local steps",
        )
        return [
            f"measured so far: {short_seconds(found.alone_s)} a step and {short_seconds(meeting)} a meeting, so "
            f"{short_seconds(found.local_s)} and {_size(found.local_bytes)} a step; taken together it would be "
            f"{short_seconds(found.together_s)} at most, and {_size(found.together_bytes)}{worth}"
        ]


def _size(size_bytes: float) -> str:
    return short_size(float(f"{size_bytes:.3g}"))
