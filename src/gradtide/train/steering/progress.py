"""How far a run is: a bar (rich's own) on a terminal and in a notebook, elsewhere a line every 10 seconds."""

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from gradtide.environment import in_notebook
from gradtide.events import BatchDone, CheckpointFailed, Emit, EpochDone, Event

if TYPE_CHECKING:
    from gradtide.sync import Job

__all__ = ["RunProgress", "follow_progress"]

_RATE_S = 10.0  # samples/s are those of so long


class Shown(Protocol):
    """Where progress is shown."""

    every_s: float  # how often it changes
    epoch_s: float  # epochs that take so long have a line each, and their steps have some; those of shorter ones don't

    def state(self, text: str, done: int, of: int | None) -> None:
        """Where the run is now: so many of its steps."""

    def line(self, text: str) -> None:
        """What stays."""

    def close(self) -> None: ...


def follow_progress(wanted: bool | None, epochs: int, batches: int | None, job: "Job | None") -> "RunProgress | None":
    """What follows the run in this process. Of a job's workers the first one shows it: another, when that has died."""
    if wanted is False or (job is not None and job.rank and job.elastic is None):
        return None
    return RunProgress(epochs, batches, job)


class RunProgress:
    """Follows one worker's events. `batches` of an epoch, where that is known.

    A step that shows nothing costs it a look at the clock and two sums.
    """

    def __init__(
        self,
        epochs: int,
        batches: int | None,
        job: "Job | None" = None,
        find: Callable[[], Shown] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._epochs, self._batches, self._job, self._clock = epochs, batches, job, clock
        self._find, self._shown = find or _find, None if find is None else find()
        self._last: BatchDone | None = None
        self._began_s = self._last_s = self._due_s = self._epoch_s = 0.0
        self._epoch_took_s = math.inf  # the last one; until there is one, a long time
        self._aside_s, self._ends = 0.0, 0  # what went into evaluating, at so many epochs' ends
        self._steps, self._samples, self._in_epoch = -1, 0, 0  # the first step begins the clock
        self._marks: deque[tuple[float, int]] = deque()  # when so many samples were done, without what went aside
        self._told = False

    def around(self, emit: Emit) -> Emit:
        """An observer that tells `emit` as well."""

        def observe(event: Event) -> None:
            emit(event)
            if isinstance(event, BatchDone):
                self._follow(event)
            elif isinstance(event, EpochDone) and self._last is not None:  # else it resumed at an epoch's end
                self._aside_s, self._ends = self._aside_s + self._clock() - self._last_s, self._ends + 1
            elif isinstance(event, CheckpointFailed):
                self.remark(f"no checkpoint of step {event.step}: {event.text}")

        return observe

    def remark(self, text: str) -> None:
        self._where().line(f"gradtide: {text}")

    def tell_epoch(self, epoch: int, batches: int, values: Mapping[str, float]) -> None:
        """An epoch of so many steps is over, with these figures."""
        now_s, shown = self._clock(), self._where()
        if self._batches is None:
            self._batches = batches
        self._epoch_took_s, self._epoch_s, self._last_s = now_s - self._epoch_s, now_s, now_s
        if self._is_main and (self._epoch_took_s >= shown.epoch_s or now_s >= self._due_s):
            figures = [f"{name} {value:.4g}" for name, value in values.items()]
            if shown.epoch_s and now_s >= self._due_s and self._last is not None:  # it stands for that of a step, too
                figures += [*self._recent(), *self._left(self._last)]
            shown.line("  ".join([f"epoch {epoch}/{self._epochs}", *figures]))
            self._told, self._due_s = True, now_s + shown.every_s

    def close(self) -> None:
        """The run is over, well or badly."""
        if self._last is not None and self._told and self._is_main:
            took = timedelta(seconds=round(self._clock() - self._began_s))
            rate = _rate(self._samples, self._last_s - self._began_s - self._aside_s)
            self._show(self._last, [*rate, f"took {took}"])
        if self._shown is not None:
            self._shown.close()

    @property
    def _is_main(self) -> bool:
        return self._job is None or self._job.rank == 0

    def _where(self) -> Shown:
        if self._shown is None:
            self._shown = self._find()
        return self._shown

    def _follow(self, event: BatchDone) -> None:
        self._in_epoch = self._in_epoch + 1 if self._last is not None and event.epoch == self._last.epoch else 1
        self._last, self._last_s = event, self._clock()
        self._steps += 1
        if self._steps == 0:
            self._begin()
        else:
            self._samples += self._of_all(event)
        if self._last_s >= self._due_s and self._is_main and self._epoch_took_s >= self._where().epoch_s:
            self._told, self._due_s = True, self._last_s + self._where().every_s
            self._show(event, [*self._recent(), *self._left(event)])

    def _begin(self) -> None:
        """What starts up is not measured: the first step's end begins the clock."""
        self._began_s = self._epoch_s = self._last_s
        self._marks.append((self._last_s, 0))
        self._due_s = self._last_s + (self._where().every_s if self._where().epoch_s else 0.0)

    def _of_all(self, event: BatchDone) -> int:
        """Samples of the step of all workers. Those of a split model each tell of a share."""
        if self._job is None or not event.samples:
            return event.samples
        return event.samples * self._job.size if self._job.share is None else self._job.share.of

    def _recent(self) -> list[str]:
        now_s = self._last_s - self._aside_s
        self._marks.append((now_s, self._samples))
        while len(self._marks) > 2 and self._marks[1][0] <= now_s - _RATE_S:
            self._marks.popleft()
        since_s, before = self._marks[0]
        return _rate(self._samples - before, now_s - since_s)

    def _left(self, event: BatchDone) -> list[str]:
        if not self._batches or not self._steps:
            return []
        each_s = (self._last_s - self._began_s - self._aside_s) / self._steps
        ends_s = self._aside_s / self._ends * (self._epochs + 1 - event.epoch) if self._ends else 0.0
        left_s = each_s * (self._batches * self._epochs - event.step) + ends_s
        return [f"{timedelta(seconds=round(left_s))} left"]

    def _show(self, event: BatchDone, more: list[str]) -> None:
        # After a resume an epoch does not begin with its first step.
        step = (event.step - 1) % self._batches + 1 if self._batches else self._in_epoch
        of, total = (f"/{self._batches}", self._batches * self._epochs) if self._batches else ("", None)
        words = [f"epoch {event.epoch}/{self._epochs}", f"step {step}{of}", f"loss {event.loss:.4g}", *more]
        self._where().state("  ".join(words), event.step, total)


def _rate(samples: int, seconds: float) -> list[str]:
    if not samples or seconds <= 0:
        return []
    per_s = samples / seconds
    return [f"{per_s:,.0f} samples/s" if per_s >= 10 else f"{per_s:.2g} samples/s"]


def _find() -> Shown:
    if in_notebook():
        return _InNotebook()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    return _OnTerminal() if on_terminal and not _is_dumb() else _InLog()


def _is_dumb() -> bool:
    from rich.console import Console  # takes a while, and only who has a terminal needs it

    return Console(stderr=True).is_dumb_terminal


class _InLog:
    """A file, a pipe, a worker's launcher: a line now and then, and nothing of a run that is shorter."""

    every_s, epoch_s = 10.0, 5.0

    def state(self, text: str, done: int, of: int | None) -> None:
        self.line(text)

    def line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it, or there is no such stream
            sys.stderr.write(f"{text}\n")  # whole, so that no other thread's words come in between
            sys.stderr.flush()

    def close(self) -> None:
        pass


class _OnTerminal:
    """rich's bar, below all lines."""

    every_s, epoch_s = 0.2, 0.0

    def __init__(self) -> None:
        self._bar, self._task = _rich_bar()

    def state(self, text: str, done: int, of: int | None) -> None:
        self._bar.update(self._task, completed=done, total=of, description=text)
        if self._bar.live.is_started:
            self._bar.refresh()
        else:
            self._bar.start()

    def line(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


class _InNotebook:
    """rich's bar, as what a cell shows: without widgets, which not every notebook has and none keeps when saved."""

    every_s, epoch_s = 0.5, 0.0

    def __init__(self) -> None:
        from IPython.display import display

        self._bar, self._task = _rich_bar()
        self._display: Any = display
        self._handle: Any = None

    def state(self, text: str, done: int, of: int | None) -> None:
        self._bar.update(self._task, completed=done, total=of, description=text)
        if self._handle is None:
            self._handle = self._display(self._bar, display_id=True)
        else:
            self._handle.update(self._bar)

    def line(self, text: str) -> None:
        print(text)

    def close(self) -> None:
        pass


def _rich_bar() -> tuple[Any, Any]:
    """The bar and its one task; it is drawn only when told to."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    text = TextColumn("{task.description}", markup=False)
    bars = Bars(BarColumn(bar_width=16), text, console=Console(stderr=True), auto_refresh=False)
    return bars, bars.add_task("", total=None)
