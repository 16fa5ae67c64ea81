"""A worker's events, cut into steps. A long log is never in memory as a whole."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradtide.events import BatchDone, BatchStarted, Event, ParametersUpdated
from gradtide.observe.meter import Timed

__all__ = ["WorkerStep", "cut_into_steps"]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """What happened from the end of one step to the end of the next."""

    number: int
    before: Timed | None  # the event that ended the step before
    events: list[Timed]

    @property
    def began_s(self) -> float | None:
        """When it had its batch."""
        return next((at_s for at_s, event in self.events if isinstance(event, BatchStarted)), None)

    @property
    def done(self) -> BatchDone | None:
        last = self.events[-1].event
        return last if isinstance(last, BatchDone) else None


def cut_into_steps(events: Iterable[Timed], *, own_loop: bool) -> Iterator[WorkerStep]:
    """`own_loop`: of the user's own, which does not say that a batch is done: a step ends with its update."""
    ends: type[Event] = ParametersUpdated if own_loop else BatchDone
    number, before, found = 0, None, list[Timed]()
    for timed in events:
        found.append(timed)
        if isinstance(timed.event, ends):
            number = timed.event.step if isinstance(timed.event, BatchDone) else number + 1
            yield WorkerStep(number, before, found)
            before, found = timed, []
    if found:
        yield WorkerStep(number + 1, before, found)
