"""What the site adds to Sphinx: every command with what `gradtide COMMAND -h` says, as lists that fit any width; and
docstrings, which are written as plain text with code in backticks and in indented lines, as the reStructuredText that
Sphinx reads."""

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gradtide.cli.app import app
from gradtide.cli.plan.completion import with_options

Entry = tuple[str, str]


class CommandsDirective(SphinxDirective):
    """`{commands}`: a section a command."""

    def run(self) -> list[nodes.Node]:
        return list(_sections("gradtide", typer.main.get_command(app)))


def _sections(name: str, command: Any) -> Iterator[nodes.section]:
    command = with_options() if name == "gradtide plan" else command  # whose own parser is argparse's
    context = command.context_class(command, info_name=name, terminal_width=1000)
    section = nodes.section("", nodes.title(text=name), ids=[nodes.make_id(name)])
    usage = command.get_usage(context)
    section += nodes.literal_block(usage, usage, language="text", classes=["usage"])
    section += [nodes.paragraph(text=part.replace("\n", " ")) for part in (command.help or "").split("\n\n")]
    section += _listed([entry for each in command.get_params(context) if (entry := each.get_help_record(context))])
    inner = [command.get_command(context, word) for word in getattr(command, "commands", ())]
    shown = [each for each in inner if not each.hidden]
    section += _listed([(each.name, each.get_short_help_str(limit=200)) for each in shown])
    yield section
    for each in shown:
        yield from _sections(f"{name} {each.name}", each)


def _listed(entries: list[Entry]) -> list[nodes.Node]:
    items = [
        nodes.definition_list_item(
            "", nodes.term("", "", nodes.literal(text=what)), nodes.definition("", nodes.paragraph(text=says))
        )
        for what, says in entries
        if what != "--help"
    ]
    return [nodes.definition_list("", *items)] if items else []


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
