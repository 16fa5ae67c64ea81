"""EarlyStopping and BestModel. Both read the history, so a run that was resumed goes on as if it had not stopped."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gradtide.calling import check_whole, refuse_foreign_names
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.tensor_file import TensorFile, TensorGroup, write_file
from gradtide.errors import ConfigError, OutputError
from gradtide.events import BatchStarted, Emit, Event
from gradtide.train.position import History
from gradtide.train.steering.callbacks import EpochEnd, FitEnd

__all__ = ["BestModel", "EarlyStopping", "without_old_model", "write_model"]


# As Keras and Lightning call them.
_OF_STOPPING = {
    "monitor metric": "it is called watch=",
    "min_delta": "it is called at_least=",
    "restore_best_weights restore_best": "put gradtide.BestModel(restore=True) beside it",
}
_OF_CHECKPOINTS = {
    "monitor metric": "it is called watch=",
    "filepath filename file": "it is called path=",
    "restore_best_weights restore_best": "it is called restore=",
    "save_best_only save_top_k": "it keeps the best epoch and no other; for all of them say fit(checkpoints=...)",
}
_ELSEWHERE = {"val_loss": "validation_loss", "val_acc": "validation_accuracy", "val_accuracy": "validation_accuracy"}


def _values(history: History, name: str) -> list[float]:
    """One an epoch, as numbers; what is none counts as worse than any."""
    table = history.columns()
    if name not in table:
        raise ConfigError(
            f"there is no {name!r} to watch, but {', '.join(sorted(table)) or 'nothing'}; name one of these, or give "
            "fit validation= and metrics="
        )
    return [math.nan if value is None else value for value in table[name]]


def _best(values: list[float], mode: str, at_least: float) -> int:
    """The epoch, from 0, of the best value; a later one must be better by more than `at_least`."""
    sign, best = (1.0 if mode == "min" else -1.0), -1
    for index, value in enumerate(values):
        if not math.isnan(value) and (best < 0 or sign * value < sign * values[best] - at_least):
            best = index
    return best


def _mode(mode: str | None, name: str) -> str:
    if name in _ELSEWHERE:  # said now, not after an epoch
        raise ConfigError(f"watch={name!r} is called {_ELSEWHERE[name]!r} here")
    if mode is None:
        return "min" if "loss" in name or "error" in name else "max"
    if mode not in ("min", "max"):
        raise ConfigError(f"mode={mode!r}; say 'min' or 'max'")
    return mode


class EarlyStopping:
    """A callback that ends the run once `watch` has not become better by more than `at_least` for `patience` epochs.

    `watch` is a column of the history: "loss", "accuracy", "validation_loss", or the name of a metric. `mode` is "min"
    or "max", whichever is better; without it, names with "loss" or "error" are better when small. Raises ConfigError if
    there is no such column, or over servers, where no worker can stop the others.
    """

    stops = True  # a run, so it is refused where none can be stopped

    @refuse_foreign_names(_OF_STOPPING)
    def __init__(
        self, watch: str = "validation_loss", *, patience: int = 3, at_least: float = 0.0, mode: str | None = None
    ) -> None:
        check_whole("EarlyStopping", patience=patience)
        if patience < 1:
            raise ConfigError(f"patience={patience}; wait for 1 epoch or more")
        self._watch, self._patience, self._at_least, self._mode = watch, patience, at_least, _mode(mode, watch)

    def __call__(self, event: Any) -> None:
        if not isinstance(event, EpochEnd):
            return
        if event.lone:
            event.stop()  # which refuses
        values = _values(event.history, self._watch)
        best = _best(values, self._mode, self._at_least)
        if len(values) - 1 - max(best, 0) >= self._patience:
            event.stop(f"{self._watch} was best in epoch {best + 1}")


class BestModel:
    """A callback that keeps the parameters of the epoch that was best by `watch`.

    `path` is a file (safetensors) that they are written to; with `restore=True` the model has them at the end of the
    run. `watch` and `mode` are those of `EarlyStopping`. Raises ConfigError without both, and OutputError if the file
    can't be written.
    """

    @refuse_foreign_names(_OF_CHECKPOINTS)
    def __init__(
        self,
        path: str | Path | None = None,
        watch: str = "validation_loss",
        *,
        mode: str | None = None,
        restore: bool = False,
    ) -> None:
        if path is None and not restore:
            raise ConfigError("BestModel() keeps nothing; give it a path, or restore=True, or both")
        self._path, self._watch, self._mode, self._restore = path, watch, _mode(mode, watch), restore
        self.restores = restore  # on all workers, so it is refused where one alone knows the best epoch
        self._kept: dict[str, Tensor] | None = None

    def __call__(self, event: Any) -> None:
        if isinstance(event, EpochEnd) and not (event.lone and not event.is_main):
            values = _values(event.history, self._watch)
            best = _best(values, self._mode, 0.0)
            if best == len(values) - 1:
                self._keep(event.model, event.is_main)
            elif self._restore:
                self._check_kept(best)
        elif isinstance(event, FitEnd) and self._restore and not event.failed:
            if event.history.loss:
                self._check_kept(_best(_values(event.history, self._watch), self._mode, 0.0))
            self._put_back(event.model)

    def _check_kept(self, best: int) -> None:
        if self._kept is None and (self._path is None or not Path(self._path).exists()):
            raise ConfigError(
                f"BestModel(restore=True): epoch {best + 1} was best, before this run was resumed or this worker came, "
                "and it was not kept here; give BestModel a path that all workers see"
            )

    def _put_back(self, model: nn.Module) -> None:
        if self._kept is None and self._path is not None and Path(self._path).exists():
            self._kept = _read(Path(self._path))
        if self._kept is not None:
            model.load_state_dict(self._kept)

    def _keep(self, model: nn.Module, is_main: bool) -> None:
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
        if self._restore:
            self._kept = state
        if self._path is not None and is_main:
            write_model(Path(self._path), state)


def without_old_model(path: Path, emit: Emit) -> Emit:
    """An observer that tells `emit`. The model of the run that goes on is no longer its last once a step has begun; a
    run that is refused before leaves it."""
    begun = False

    def observe(event: Event) -> None:
        nonlocal begun
        if not begun and isinstance(event, BatchStarted):
            begun = True
            path.unlink(missing_ok=True)
        emit(event)

    return observe


def write_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Beside it first, so that a run that is killed leaves the last one whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.new")
        write_file(open_place(str(path.parent)), "", beside.name, [TensorGroup("model", dict(state))], padded=False)
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"can't write the model to {path}: {error.strerror}; name another file") from error


def _read(path: Path) -> dict[str, Tensor]:
    with TensorFile(open_place(str(path.parent)), path.name) as file:
        return file.read(file.slots[0].start, max(slot.end for slot in file.slots))[0]
