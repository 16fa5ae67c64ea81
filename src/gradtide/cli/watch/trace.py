"""`gradtide trace RUN`: what every worker and server did when, as a file for Perfetto."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gradtide.errors import ConfigError, OutputError

__all__ = ["TRACED", "RunWatchers", "check_trace_folder", "tell_trace", "trace"]

TRACED = {"GRADTIDE_TRACE": "1"}  # variables of a worker


class RunWatchers(NamedTuple):
    """Who looks at a run."""

    dashboard: bool = False
    trace: bool = False


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder: runs/NAME")],
    output: Annotated[
        Path | None, typer.Option(help="Where to  [default: trace.json in the run's folder]", show_default=False)
    ] = None,
    most_events: Annotated[
        int | None,
        typer.Option(help="Of a longer run: the first and last steps, and some between  [default: 200000]"),
    ] = None,
) -> None:
    """Write what every worker and server of a run did when, with arrows from who sent to who received, for
    ui.perfetto.dev."""
    from gradtide.observe.trace import find_logs

    if most_events is not None and most_events < 1:
        raise ConfigError(f"--most-events {most_events} makes no sense; give 1 or more")
    if not run.is_dir():
        raise ConfigError(f"{run} is no folder; give that of a run, as runs/NAME")
    if not find_logs(run).workers:
        raise ConfigError(
            f"{run} has no worker-0.jsonl, so nobody wrote down what happened; train with --workers, or with --trace"
        )
    typer.echo(_write(run, output or run / "trace.json", most_events))


def _write(run: Path, path: Path, most_events: int | None = None) -> str:
    from gradtide.observe.run_facts import read_facts
    from gradtide.observe.trace import MOST_EVENTS, write_trace

    facts = read_facts(run)
    about = write_trace(path, run, facts.title if facts is not None else run.name, most_events or MOST_EVENTS)
    count = about["arrows_left_out"]
    lost = f", without {count:,} {'arrow' if count == 1 else 'arrows'} that would go back in time" if count else ""
    return f"{path}: {about['events']:,} events, {about['kept']}{lost}; open it at ui.perfetto.dev"


def check_trace_folder(folder: Path, engine: str) -> None:
    """Before anything is started: can a job leave its events there?"""
    if engine != "local":
        raise ConfigError("--trace reads files of this machine; on Ray set GRADTIDE_EVENTS to a folder that all share")
    if any(folder.glob("*.jsonl")):
        raise OutputError(f"{folder} has events of another run; name another folder, or remove it")


def tell_trace(folder: Path) -> None:
    """At the end of a job."""
    from gradtide.observe.trace import find_logs

    if find_logs(folder).workers:
        typer.echo(f"gradtide: {_write(folder, folder / 'trace.json')}", err=True)
    else:
        typer.echo("gradtide: no worker told of anything: a script does with fit or DataParallel", err=True)
