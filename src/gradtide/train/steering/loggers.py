"""A line an epoch: in a CSV file, and for TensorBoard. One worker writes."""

import csv
import importlib
from pathlib import Path
from typing import Any

from gradtide.errors import ConfigError, OutputError
from gradtide.train.steering.callbacks import EpochEnd, FitEnd

__all__ = ["CSVLog", "TensorBoardLog"]


class CSVLog:
    """A callback that writes every epoch's figures as a line of the CSV file `path`.

    A resumed run writes the lines before it, too. Raises OutputError if the file can't be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(_checked("CSVLog", path))

    def __call__(self, event: Any) -> None:
        if not isinstance(event, EpochEnd) or not event.is_main:
            return
        columns: dict[str, list[Any]] = {**event.history.columns()}
        epochs = max(map(len, columns.values()))
        padded: dict[str, list[Any]] = {
            name: [None] * (epochs - len(values)) + values for name, values in columns.items()
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_name(f".{self._path.name}.new")
            with beside.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["epoch", *padded])
                writer.writerows([epoch + 1, *row] for epoch, row in enumerate(zip(*padded.values(), strict=True)))
            beside.replace(self._path)
        except OSError as error:
            raise OutputError(f"CSVLog can't write {self._path}: {error.strerror}; name another file") from error


class TensorBoardLog:
    """A callback that writes every epoch's figures as scalars for `tensorboard --logdir folder`.

    Raises ConfigError if TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(_checked("TensorBoardLog", folder))
        self._writer: Any = None
        _summary_writer()

    def __call__(self, event: Any) -> None:
        if isinstance(event, EpochEnd) and event.is_main:
            self._writer = self._writer or _summary_writer()(self._folder)
            for name, value in event.values.items():
                self._writer.add_scalar(name, value, event.epoch)
            self._writer.flush()
        elif isinstance(event, FitEnd) and self._writer is not None:
            self._writer.close()
            self._writer = None


def _checked(who: str, path: str | Path) -> str | Path:
    if not isinstance(path, str | Path):
        raise ConfigError(f"{who}: {path!r} is no path; name a file or folder, as 'runs/first'")
    return path


def _summary_writer() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise ConfigError("TensorBoardLog needs TensorBoard: pip install 'gradtide[tensorboard]'") from error
