"""A line that follows the run on a terminal, and one for every epoch that is over."""

import sys
import time
from collections.abc import Callable
from typing import Any

from gradtide.events import BatchDone, CheckpointFailed
from gradtide.train.steering.callbacks import EpochEnd, FitEnd

__all__ = ["ProgressLine", "wants_progress"]

_EVERY_S = 0.1


def wants_progress(progress: bool | None, rank: int) -> bool:
    """By default where somebody looks at it: on a terminal, of one worker."""
    return rank == 0 and (sys.stderr.isatty() if progress is None else progress)


class ProgressLine:
    """Follows one worker's events. `batches` of an epoch, where that is known."""

    def __init__(self, epochs: int, batches: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console  # takes a while, and only a terminal needs it
        from rich.live import Live

        self._epochs, self._batches, self._clock = epochs, batches, clock
        self._console = Console(stderr=True)
        self._live = Live("", console=self._console, auto_refresh=False, transient=True)
        self._begun, self._shown_s, self._in_epoch, self._epoch = False, 0.0, 0, 0

    def __call__(self, event: Any) -> None:
        if isinstance(event, BatchDone):
            self._follow(event)
        elif isinstance(event, EpochEnd):
            figures = "  ".join(f"{name} {value:.4g}" for name, value in event.values.items())
            self._console.print(f"epoch {event.epoch}/{self._epochs}  {figures}", markup=False, highlight=False)
        elif isinstance(event, CheckpointFailed):
            self._console.print(f"no checkpoint of step {event.step}: {event.text}", markup=False, highlight=False)
        elif isinstance(event, FitEnd):
            self._live.stop()

    def tell_resumed(self, step: int, where: str) -> None:
        self._console.print(f"going on after step {step}, from {where}", markup=False, highlight=False)

    def _follow(self, event: BatchDone) -> None:
        self._in_epoch = self._in_epoch + 1 if event.epoch == self._epoch else 1
        if self._batches:  # after a resume an epoch does not begin with its first step
            self._in_epoch = (event.step - 1) % self._batches + 1
        self._epoch = event.epoch
        if self._clock() - self._shown_s < _EVERY_S:
            return
        if not self._begun:
            self._live.start()
            self._begun = True
        self._shown_s = self._clock()
        of = f"/{self._batches}" if self._batches else ""
        line = f"epoch {event.epoch}/{self._epochs}  step {self._in_epoch}{of}  loss {event.loss:.4g}"
        self._live.update(line, refresh=True)
