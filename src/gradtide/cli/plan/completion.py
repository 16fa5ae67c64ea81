"""The help of `gradtide plan`, and what a shell completes after it: its options are argparse's."""

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gradtide.cli.plan.command import OPTIONS, SUMMARY, TOPOLOGY

__all__ = ["PlanCommand", "complete_topology", "help_text", "with_options"]


class PlanCommand(TyperCommand):
    """Completes the options of argparse; parses nothing."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return with_options().shell_complete(ctx, incomplete)


def complete_topology(ctx: typer.Context, incomplete: str) -> list[str]:
    """An example of each preset; a file's name is completed by the shell."""
    from gradtide.topology.presets import PRESETS

    return [] if ctx.params.get("words") else [p.example for p in PRESETS if p.example.startswith(incomplete)]


def help_text() -> str:
    """The help of `gradtide plan`, as that of all other commands looks."""
    command = with_options()
    with command.make_context("gradtide plan", [], resilient_parsing=True) as context:
        return f"{command.get_help(context)}\n"


def with_options() -> Any:
    """A command that does nothing, with the options of `gradtide plan`."""

    def nothing(**options: str) -> None:
        pass

    kinds: dict[str, Any] = {"topology": Annotated[str, typer.Argument(help=TOPOLOGY, show_default=False)]}
    for name, kind, text in OPTIONS:
        shown = typer.Option(name, help=text, show_default=False)
        kinds[name.strip("-").replace("-", "_")] = Annotated[list[str] if kind is list else kind, shown]
    named = inspect.Parameter.KEYWORD_ONLY
    listed = [inspect.Parameter(name, named, default=_empty(kind), annotation=kind) for name, kind in kinds.items()]
    nothing.__annotations__ = kinds
    nothing.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=SUMMARY, context_settings={"help_option_names": ["-h", "--help"]})(nothing)
    return typer.main.get_command(app)


def _empty(kind: Any) -> object:
    return {bool: False, list[str]: []}.get(kind.__origin__, "")
