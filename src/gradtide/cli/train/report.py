"""How far every worker is while they train, and at the end what the run was and where each worker's time went."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from gradtide.cli.table import print_table
from gradtide.cli.train.keeping import tell_failure
from gradtide.cli.train.workers import Terminal
from gradtide.events import BatchDone, CheckpointFailed
from gradtide.extras import is_there, lacking
from gradtide.observe.event_log import LogReader, log_path
from gradtide.observe.meter import Meter, Timed, Totals
from gradtide.observe.run_facts import RunFacts, write_facts
from gradtide.observe.trace import write_trace
from gradtide.train.record import RunFolder, draw_curve, read_metrics
from gradtide.train.together.merge import merge, totals_of
from gradtide.train.together.pictures import draw_time

__all__ = ["Progress", "conclude", "draw_pictures"]

_LOOK_S = 0.2


class Progress:
    """Follows what workers write down, and shows how far each is."""

    def __init__(self, folder: Path, facts: RunFacts, terminal: Terminal, *, tells: bool) -> None:
        """`tells`: of the first worker, too, that a checkpoint failed; else its fit does."""
        workers = facts.workers
        self._folder, self._facts = folder, facts
        self._untold = True  # the folder does not say yet what run it is of
        self.logs: list[list[Timed]] = [[] for _ in range(workers)]
        self._readers = [LogReader(log_path(folder, rank)) for rank in range(workers)]
        self._meters = [Meter() for _ in range(workers)]
        self._last: list[BatchDone | None] = [None] * workers
        self._failed: list[CheckpointFailed] = []  # that nobody was told of yet
        self._terminal, self._tells = terminal, tells

    @property
    def began(self) -> bool:
        return any(self.logs)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Meanwhile a thread follows: the main one has the workers and the signals to look after."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_LOOK_S):
                self._look()

        thread = threading.Thread(target=follow, name="gradtide progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with self._terminal.paused():
                self._read()
                self._tell_failures()

    def _look(self) -> None:
        self._read()
        if self.began and self._untold:  # not before: a run that can't start leaves nothing behind
            self._untold = False
            write_facts(self._folder, self._facts)
        if self._failed:
            with self._terminal.paused():
                self._tell_failures()
        if self._terminal.shows and self.began:
            self._terminal.update(self._table())

    def _read(self) -> None:
        for rank, reader in enumerate(self._readers):
            for timed in reader.read():
                self.logs[rank].append(timed)
                self._meters[rank].note(timed)
                if isinstance(timed.event, CheckpointFailed) and (rank or self._tells):
                    self._failed.append(timed.event)
                if isinstance(timed.event, BatchDone):
                    self._last[rank] = timed.event

    def _tell_failures(self) -> None:
        for event in self._failed:
            tell_failure(event)
        self._failed.clear()

    def _table(self) -> Table:
        table = Table()
        for heading in ("worker", "epoch", "step", "loss", "samples/s"):
            table.add_column(heading, justify="right", min_width=7)
        for rank, (last, meter) in enumerate(zip(self._last, self._meters, strict=True)):
            if last is None:
                table.add_row(str(rank), *("-",) * 4)
            else:
                rate = f"{meter.totals.samples_per_s:,.0f}"
                table.add_row(str(rank), str(last.epoch), str(last.step), f"{last.loss:.3f}", rate)
        return table


def conclude(folder: RunFolder, title: str, logs: Sequence[list[Timed]], as_json: bool, whole: bool) -> None:
    """Writes metrics and pictures, of what there is if it did not end well."""
    by_rank, totals = dict(enumerate(logs)), [totals_of(log) for log in logs]
    figures = _all(totals)
    for line in merge(title, by_rank):
        folder.write(line)
    if whole:
        folder.summary(title, figures)
    folder.close()
    if not folder.metrics.exists():  # no step was taken
        return
    if draw_pictures(folder):
        draw_time(totals, folder.path / "time.png")
    write_trace(folder.path / "trace.json", folder.path, f"gradtide train, {title}")
    if not whole:
        typer.echo(f"gradtide: what there is so far is in {folder.path}", err=True)
    elif as_json:
        print(json.dumps({"folder": str(folder.path), "runs": {title: figures}}))
    else:
        _show_table(title, totals, figures, folder.path)


def draw_pictures(folder: RunFolder) -> bool:
    """curve.png, where it can be drawn; a line where it can't."""
    if is_there("plot"):
        draw_curve(read_metrics(folder.metrics), folder.path / "curve.png")
        return True
    typer.echo(f"gradtide: {lacking('plot', 'curve.png')}", err=True)
    return False


def _all(totals: Sequence[Totals]) -> dict[str, Any]:
    """The run as a whole, and each worker."""
    return {
        "samples": sum(of.samples for of in totals),
        "steps": max(of.steps for of in totals),
        "wire_bytes": sum(of.wire_bytes for of in totals),
        "samples_per_s": sum(of.samples_per_s for of in totals),
        "test_accuracy": totals[0].test_accuracy,
        "metrics": totals[0].metrics,
        "workers": [of.as_dict() for of in totals],
    }


def _show_table(title: str, totals: Sequence[Totals], figures: dict[str, Any], path: Path) -> None:
    rows = []
    for rank, of in enumerate(totals):
        seconds = of.compute_s, of.push_s, of.wait_s, of.update_s, of.data_s, of.evaluate_s
        rows.append((rank, *(f"{value:.2f}" for value in seconds), f"{of.samples_per_s:,.0f}"))
    headings = "worker", "compute", "push", "wait", "pull, update", "data", "evaluate", "samples/s"
    print_table(headings, rows, f"{title}: where the time went, in seconds")
    accuracy = figures["test_accuracy"]
    tested = "" if accuracy is None else f"test accuracy {accuracy:.3f}, "
    tested += "".join(f"{name} {value:.4g}, " for name, value in figures["metrics"].items())
    print(f"{tested}{figures['samples_per_s']:,.0f} samples/s in all, {figures['wire_bytes'] / 1e6:,.1f} MB sent")
    print(f"in {path}: metrics.jsonl, curve.png, time.png, trace.json (for ui.perfetto.dev)")
    print(f"model: {path}/model.safetensors; for torch: gradtide checkpoint export {path} model.pt")
