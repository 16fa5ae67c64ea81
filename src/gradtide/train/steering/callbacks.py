"""Functions of events: what they are told, how they stop a run, and whose fault an error is.

A callback is any function of one event. It gets every event of events.py, and two more: `EpochEnd`, which has the
epoch's figures and the model, and can stop the run; and `FitEnd`, once, whatever ended it. All workers call theirs.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gradtide.errors import ConfigError, GradtideError
from gradtide.events import Emit, Event
from gradtide.train.position import History

__all__ = ["Callbacks", "EpochEnd", "FitEnd"]

Callback = Callable[[Any], object]
_NO_STOPPING = (
    "over servers each worker goes on by itself, and only one knows the validation loss: a callback can't stop the "
    "run; train without servers, or give fewer epochs"
)


@dataclass(frozen=True, slots=True)
class EpochEnd(Event):
    """What a callback is given when an epoch is over, and the validation data has been evaluated.

    `epoch` counts from 1, and `step` all steps so far. `values` has the epoch's figures by name, `history` those of all
    epochs. `model` may be looked at, saved and changed in place: all devices and workers follow (docs/fit.md).
    `is_main`: whether this worker writes for all. `lone`: over servers each worker goes on by itself, so that none can
    stop the others.
    """

    epoch: int
    step: int
    values: dict[str, float]  # by name: loss, accuracy, validation_loss, ..., lr, and every metric
    history: History
    model: nn.Module  # as it is now; what is changed in it counts on all devices and workers
    is_main: bool  # whether this worker writes what one of them is to write
    lone: bool  # over servers: each worker goes on by itself, so none can stop the others
    asked: list[str] = field(default_factory=list)

    def stop(self, why: str = "") -> None:
        """Makes this the last epoch, for all workers; `why` is told. Raises ConfigError over servers."""
        if self.lone:
            raise ConfigError(_NO_STOPPING)
        self.asked.append(why or "a callback asked for it")


@dataclass(frozen=True, slots=True)
class FitEnd(Event):
    """What a callback is given when the run is over, well or badly (`failed`).

    `model` is the one that `fit` was given, with what was learnt; `history` has the figures of all epochs. `is_main`:
    whether this worker writes for all.
    """

    history: History
    model: nn.Module
    is_main: bool
    failed: bool


class Callbacks:
    """All that a run was given."""

    def __init__(self, wanted: Sequence[Callback] | Callback | None) -> None:
        listed: list[Any] = [] if wanted is None else [*wanted] if isinstance(wanted, list | tuple) else [wanted]
        for one in listed:
            if not callable(one) or isinstance(one, type):
                raise ConfigError(
                    f"callbacks has {one!r}; give functions of one event, or objects such as gradtide.EarlyStopping()"
                )
        self._all: list[Callback] = listed

    def __bool__(self) -> bool:
        return bool(self._all)

    def check_over_servers(self) -> None:
        """Raises ConfigError for one that is to stop the run, or for which all workers must know the best epoch."""
        for callback in self._all:
            if getattr(callback, "stops", False):
                raise ConfigError(f"{type(callback).__name__}: {_NO_STOPPING}")
            if getattr(callback, "restores", False):
                raise ConfigError(
                    f"{type(callback).__name__}(restore=True): over servers one worker evaluates, and the others don't "
                    "know which epoch was best; leave restore out, and load its file when the run is over"
                )

    def tell(self, event: Event) -> None:
        for callback in self._all:
            try:
                callback(event)
            except GradtideError:
                raise
            except Exception as error:
                raise ConfigError(_blame(callback, event, error)) from error

    def around(self, emit: Emit) -> Emit:
        """An observer that tells `emit` and all callbacks."""
        if not self._all:
            return emit

        def observe(event: Event) -> None:
            emit(event)
            self.tell(event)

        return observe


def _blame(callback: Callback, event: Event, error: Exception) -> str:
    """Whose it is, what it raised, and where."""
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    last = traceback.extract_tb(error.__traceback__)[-1]
    when = "".join(f" {word} {getattr(event, word)}" for word in ("epoch", "step") if hasattr(event, word))
    return (
        f"the callback {name} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno}), told of "
        f"{type(event).__name__}{when}; mend it, or leave it out"
    )
