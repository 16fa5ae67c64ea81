"""What a shell completes after `gradtide plan`, whose options the library that completes does not know."""

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gradtide.cli.plan.command import OPTIONS

__all__ = ["PlanCommand", "complete_topology"]


class PlanCommand(TyperCommand):
    """Completes the options of argparse; parses nothing."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return _with_options().shell_complete(ctx, incomplete)


def complete_topology(ctx: typer.Context, incomplete: str) -> list[str]:
    """An example of each preset; a file's name is completed by the shell."""
    from gradtide.topology.presets import PRESETS

    return [] if ctx.params.get("words") else [p.example for p in PRESETS if p.example.startswith(incomplete)]


def _with_options() -> Any:
    """A command that does nothing, with the options of `gradtide plan`."""

    def nothing(**options: str) -> None:
        pass

    kinds: dict[str, Any] = {
        name.strip("-").replace("-", "_"): Annotated[str, typer.Option(name, help=text)] for name, _, text in OPTIONS
    }
    named = inspect.Parameter.KEYWORD_ONLY
    listed = [inspect.Parameter(name, named, default="", annotation=kind) for name, kind in kinds.items()]
    nothing.__annotations__ = kinds
    nothing.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(nothing)
    return typer.main.get_command(app)
