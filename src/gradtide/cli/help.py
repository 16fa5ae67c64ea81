"""How `--help` lists commands: each with its whole first sentence, folded where the line ends."""

from typing import Any

from typer.core import TyperGroup

__all__ = ["Commands"]

_WHOLE = 10_000  # characters: click would cut a sentence off at about 45


class Commands(TyperGroup):
    """A group of commands whose help is not cut off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
