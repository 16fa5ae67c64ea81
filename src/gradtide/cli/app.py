"""Puts the commands together."""

from typing import Annotated

import typer

from gradtide import __version__
from gradtide.cli import checkpoint, topology
from gradtide.cli.bench.app import bench
from gradtide.cli.doctor.command import doctor
from gradtide.cli.help import Commands
from gradtide.cli.plan.command import SUMMARY, plan
from gradtide.cli.plan.completion import PlanCommand, complete_topology
from gradtide.cli.plan.split import split
from gradtide.cli.run import SETTINGS, run
from gradtide.cli.store_commands import look
from gradtide.cli.store_commands.chaos import chaos
from gradtide.cli.store_commands.restore import restore
from gradtide.cli.store_commands.scale import scale
from gradtide.cli.store_commands.serve import coordinator, secret, serve
from gradtide.cli.train.command import train
from gradtide.cli.watch.dashboard import dashboard
from gradtide.cli.watch.status import status
from gradtide.cli.watch.trace import trace

__all__ = ["app"]

app = typer.Typer(
    name="gradtide",
    cls=Commands,
    help="Train one PyTorch model on many devices and machines, however they are wired.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradtide {__version__}")
        raise typer.Exit


@app.callback()
def _gradtide(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(train)
app.command(context_settings=SETTINGS)(run)


@app.command(
    "plan",
    cls=PlanCommand,
    help=SUMMARY,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
def _plan(words: Annotated[list[str] | None, typer.Argument(autocompletion=complete_topology)] = None) -> None:
    plan(words or [])


app.command()(split)
app.command()(doctor)
app.command()(serve)
app.command()(coordinator)
app.command()(chaos)
app.command()(status)
app.command()(dashboard)
app.command()(trace)
app.command()(scale)
app.command()(restore)
app.add_typer(secret, name="secret")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(look.app, name="store")
app.add_typer(topology.app, name="topology")
app.add_typer(bench, name="bench")
