"""Puts the commands together; turns our errors into one line and exit code 2."""

import sys
from typing import Annotated

import typer

from gradtide import __version__
from gradtide.cli import store, topology
from gradtide.cli.bench import bench
from gradtide.cli.chaos import chaos
from gradtide.cli.doctor import doctor
from gradtide.cli.plan import plan
from gradtide.cli.run import SETTINGS, run
from gradtide.cli.serve import coordinator, secret, serve
from gradtide.cli.status import status
from gradtide.cli.train import train
from gradtide.errors import GradtideError

__all__ = ["app", "main"]

app = typer.Typer(
    name="gradtide",
    help="Train one PyTorch model on many devices and machines, however they are wired.",
    no_args_is_help=True,
    add_completion=False,
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
app.command()(plan)
app.command()(doctor)
app.command()(serve)
app.command()(coordinator)
app.command()(secret)
app.command()(chaos)
app.command()(status)
app.add_typer(store.app, name="store")
app.add_typer(topology.app, name="topology")
app.add_typer(bench, name="bench")


def main() -> None:
    """The `gradtide` command. A user's mistake is one line and exit code 2."""
    try:
        app()
    except GradtideError as error:
        print(f"gradtide: {error}", file=sys.stderr)
        sys.exit(2)
