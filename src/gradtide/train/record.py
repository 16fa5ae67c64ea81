"""runs/<name>/: metrics.jsonl while it runs, curve.png at its end."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from gradtide.errors import OutputError
from gradtide.events import BatchDone, CompressionDecided, EpochDone, Event, SharesChanged, SplitDecided

__all__ = ["RunFolder", "draw_curve", "lines_before", "read_metrics"]


class RunFolder:
    """Made with the first event, so that a run that can't start leaves nothing behind."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.perf_counter, before: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """`before`: the lines of a run that goes on, which are kept; without them there must be none."""
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self._clock, self._before, self._going_on = clock, list(before or ()), before is not None
        self._after_s = max((line.get("seconds", 0.0) for line in self._before), default=0.0)
        self._file: TextIO | None = None
        if self.metrics.exists() and before is None:
            raise OutputError(f"{self.metrics} is there already; choose another --name or remove it")
        parent = path
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise OutputError(
                f"can't write to {path}: {parent} is not a folder that you may write; choose another --output"
            )

    def observer(self, run: str) -> Callable[[Event], None]:
        """An observer that writes a line for each batch and each epoch of the run called so."""
        started: float | None = None
        step = 0

        def observe(event: Event) -> None:
            nonlocal started, step
            self._open()
            started = self._clock() if started is None else started  # starting up is not training
            seconds = round(self._clock() - started, 6)
            if isinstance(event, BatchDone):
                step = event.step
                accuracy = None if event.correct is None else event.correct / event.samples
                line = {"epoch": event.epoch, "step": event.step, "loss": event.loss, "accuracy": accuracy}
                self.write({"run": run, "kind": "batch", "seconds": seconds, **line, "lr": event.lr})
            elif isinstance(event, SharesChanged):
                self.write({"run": run, "kind": "shares", "seconds": seconds, "step": step, **asdict(event)})
            elif isinstance(event, CompressionDecided):
                self.write({"run": run, "kind": "compression", "seconds": seconds, **asdict(event)})
            elif isinstance(event, SplitDecided):
                self.write({"run": run, "kind": "split", "seconds": seconds, **asdict(event)})
            elif isinstance(event, EpochDone):
                line = {"epoch": event.epoch, "test_loss": event.test_loss, "test_accuracy": event.test_accuracy}
                own = {"metrics": event.metrics} if event.metrics else {}
                self.write({"run": run, "kind": "epoch", "seconds": seconds, **line, **own})

        return observe

    def summary(self, run: str, figures: dict[str, Any]) -> None:
        """The last line of a run: its totals."""
        self.write({"run": run, "kind": "summary", **figures})

    def _open(self) -> TextIO:
        try:  # a line is out once it is written
            if self._file is None:
                self.path.mkdir(parents=True, exist_ok=True)
                if self._before:
                    partial = self.metrics.with_suffix(".part")
                    partial.write_text("".join(json.dumps(line) + "\n" for line in self._before), encoding="utf-8")
                    partial.replace(self.metrics)
                elif self._going_on:
                    self.metrics.unlink(missing_ok=True)
                self._file = self.metrics.open("a" if self._before else "x", encoding="utf-8", buffering=1)
        except OSError as error:
            raise OutputError(f"can't write {self.metrics} ({error.strerror}); choose another --output") from error
        return self._file

    def write(self, line: dict[str, Any]) -> None:
        if self._after_s and "seconds" in line:
            line = {**line, "seconds": round(line["seconds"] + self._after_s, 6)}
        try:
            self._open().write(json.dumps(line) + "\n")
        except OSError as error:
            raise OutputError(f"can't write {self.metrics} ({error.strerror}); the lines before are kept") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; one that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def lines_before(lines: Sequence[dict[str, Any]], step: int, epoch: int) -> list[dict[str, Any]]:
    """Of an interrupted run, what it saw up to the checkpoint at which it goes on: in this step of this epoch."""
    return [
        line
        for line in lines
        if (line["kind"] in ("batch", "shares") and line["step"] <= step)
        or (line["kind"] == "epoch" and line["epoch"] < epoch)
    ]


def draw_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    """Loss and test accuracy over time, a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for run in dict.fromkeys(line["run"] for line in metrics):
        batches = [line for line in metrics if line["run"] == run and line["kind"] == "batch"]
        epochs = [line for line in metrics if line["run"] == run and line["kind"] == "epoch"]
        (drawn,) = left.plot(
            [line["seconds"] for line in batches], _smooth([line["loss"] for line in batches]), label=run, linewidth=1.5
        )
        tested = [line for line in epochs if line["test_accuracy"] is not None]
        seconds, accuracies = ([line[name] for line in tested] for name in ("seconds", "test_accuracy"))
        right.plot(seconds, accuracies, label=run, marker="o", markersize=3, color=drawn.get_color())
    left.set(xlabel="seconds", ylabel="training loss")
    right.set(xlabel="seconds", ylabel="test accuracy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
        axes.legend()
    partial = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    partial.replace(path)


def _smooth(values: list[float], keep: float = 0.9) -> list[float]:
    """A running mean, so that one odd batch does not hide the trend."""
    smoothed, mean = [], 0.0
    for count, value in enumerate(values, start=1):
        weight = max(1 - keep, 1 / count)
        mean += weight * (value - mean)
        smoothed.append(mean)
    return smoothed
