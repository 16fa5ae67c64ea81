"""`gradtide trace RUN`: what every worker and server did when, as a file for Perfetto."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.errors import ConfigError

__all__ = ["trace"]


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
    from gradtide.observe.run_facts import read_facts
    from gradtide.observe.trace import MOST_EVENTS, find_logs, write_trace

    if most_events is not None and most_events < 1:
        raise ConfigError(f"--most-events {most_events} makes no sense; give 1 or more")
    if not run.is_dir():
        raise ConfigError(f"{run} is no folder; give that of a run, as runs/NAME")
    if not find_logs(run).workers:
        raise ConfigError(
            f"{run} has no worker-0.jsonl, so nobody wrote down what happened; train with --workers, or with --trace"
        )
    facts, path = read_facts(run), output or run / "trace.json"
    about = write_trace(path, run, facts.title if facts is not None else run.name, most_events or MOST_EVENTS)
    typer.echo(f"{path}: {about['events']:,} events, {about['kept']}; open it at ui.perfetto.dev")
