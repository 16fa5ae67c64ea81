"""What the site adds to Sphinx: every command with its help, as `gradtide COMMAND -h` prints it; and docstrings, which
are written as plain text with code in backticks and in indented lines, as the reStructuredText that Sphinx reads."""

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gradtide.cli.app import app
from gradtide.cli.plan.command import parser

_WIDTH = 100


class CommandsDirective(SphinxDirective):
    """`{commands}`: a section a command."""

    def run(self) -> list[nodes.Node]:
        return [_section(name, text) for name, text in _helps("gradtide", typer.main.get_command(app))]


def _helps(name: str, command: Any) -> Iterator[tuple[str, str]]:
    if name == "gradtide plan":  # which has a parser of its own: it must answer within a second
        yield name, parser().format_help()
        return
    context = command.context_class(command, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH)
    yield name, command.get_help(context)
    if hasattr(command, "list_commands"):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if not found.hidden:
                yield from _helps(f"{name} {inner}", found)


def _section(name: str, text: str) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(name)])
    section += nodes.title(text=name)
    section += nodes.literal_block(text, text, language="text")
    return section


def _plain(site: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = as_markup(lines)


def as_markup(lines: list[str]) -> list[str]:
    """
    >>> as_markup(["Say `x * y`, or *rest:", "", "    x", "", "so."])
    ['Say ``x * y``, or \\\\*rest:', '', '::', '', '    x', '', 'so.']
    """
    found: list[str] = []
    in_code = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not in_code and (not found or not found[-1].strip() or not _is_item(found)):
            found += ["", "::", ""] if found and found[-1].strip() else ["::", ""]
        in_code = indented or (in_code and not line.strip())
        found.append(line if in_code else _words(line))
    return found


def _is_item(found: list[str]) -> bool:
    return found[-1].lstrip().startswith(("- ", "* "))


def _words(line: str) -> str:
    parts = line.replace("``", "`").split("`")
    return "``".join(part if i % 2 else part.replace("*", "\\*") for i, part in enumerate(parts))


def setup(site: Sphinx) -> dict[str, Any]:
    site.connect("autodoc-process-docstring", _plain)
    site.add_directive("commands", CommandsDirective)
    return {"parallel_read_safe": True}
