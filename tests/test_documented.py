"""Every example in README and docs runs: Python for real, and commands too, unless documented_pages.py says why not."""

import doctest
import importlib
import inspect
import re
import shlex
import socket
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import typer

import documented_pages as said
import gradtide
from documented import PAGES, ROOT, blocks, blocks_of, mentions
from documented_reader import Reader, matches, page_commands, python_blocks
from gradtide.cli.app import app
from gradtide.cli.plan.command import parser
from gradtide.store.local.servers import local_servers

SOURCES = sorted((ROOT / "src").rglob("*.py"))


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


@cache
def whole_command():
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """As the command line does, up to where a command would begin."""
    command, context = whole_command(), None
    while True:
        if getattr(command, "name", "") == "plan":
            parser().parse_args(words)
            return
        context = command.make_context(command.name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


def known_options(words: list[str]) -> set[str]:
    """Of the command that words begin with."""
    command = whole_command()
    while hasattr(command, "commands") and words and (words[0] in command.commands or not words[0].startswith("-")):
        name = words[0] if words[0] in command.commands or command.name != "secret" else "make"
        command, words = command.commands[name], words[1:]
    if command.name == "plan":
        return {option for action in parser()._actions for option in action.option_strings}
    return {
        option for each in command.get_params(typer.Context(command)) for option in (*each.opts, *each.secondary_opts)
    }


SAMPLES = {
    "```python\nx = 1\n```": "python",
    "```bash\ngradtide doctor\n```": "unknown",
    "```\nx = 1\n```": "unknown",
    "    gradtide doctor   # of this machine\n    pip install it\n\n    what it prints\n": "commands",
    "    gradtide doctor\n    x = 1\n": "unknown",
    "    gradtide doctor\n\n    what it prints\n\n    gradtide plan\n": "unknown",
    "    store.push(1)\n": "unknown",
    "<!-- not run: of another library -->\n\n```python\nx = 1\n```": "python",
    "<!-- not run: nothing follows -->\n\nA sentence.": "unknown",
    "<!-- not run -->\n\n```python\nx = 1\n```": "unknown",
}


@pytest.mark.quick
def test_a_block_that_nobody_would_run_is_unknown():
    assert {text: next(blocks_of("it", text)).kind for text in SAMPLES} == SAMPLES
    (command,) = next(blocks_of("it", list(SAMPLES)[3])).commands
    assert (command.text, command.says) == ("gradtide doctor", "what it prints")
    assert next(blocks_of("it", list(SAMPLES)[7])).mark == "of another library"


@pytest.mark.quick
def test_every_block_says_what_it_is_and_every_mark_stands_before_one():
    assert [block.where for page in PAGES for block in blocks(page) if block.kind == "unknown"] == []


@pytest.mark.quick
@pytest.mark.parametrize("page", [page for page in PAGES if page_commands(page)])
def test_the_command_line_knows_every_command_of_a_page(page):
    for command in page_commands(page):
        if command.text.startswith("gradtide "):
            parse(shlex.split(command.text)[1:])


@pytest.mark.quick
def test_the_command_line_knows_every_option_that_a_sentence_names():
    for page in PAGES:
        for mention in mentions(page):
            words = re.sub(r"[\[\]…]|\.\.\.|\\\|\w+", "", mention).split()[1:]
            given = {word for word in words if word.startswith("-")}
            assert given <= known_options(words), f"{page}: {mention}"


@pytest.mark.quick
def test_nothing_is_said_of_a_page_that_it_does_not_show():
    assert set(said.PAGES) <= set(PAGES)
    commands = [command for page in PAGES for command in page_commands(page)]
    for pattern in (*said.NOT_RUN, *said.SLOW, *said.MEASURED):
        assert any(matches(command, pattern) for command in commands), pattern
    for (page, number), test in said.ELSEWHERE.items():
        assert number < len(python_blocks(page))
        assert Path(page).name in (ROOT / test).read_text()
    for page, told in said.PAGES.items():
        shown = "\n".join(block.text for block in blocks(page))
        assert set(told.prints) <= {command.text for command in page_commands(page)}
        assert [old for old in told.instead if old not in shown] == [], page


def pages_with(slow: bool) -> list[str]:
    return [page for page in PAGES if any(Reader(page, Path(), {}).acts(slow))]


@pytest.fixture
def reader(request, tmp_path, forks):
    there = {"folder": tmp_path, "ports": free_ports(3), "root": ROOT}
    with ExitStack() as stack:
        if "{store}" in repr(said.PAGES.get(request.param)):
            there["store"] = stack.enter_context(local_servers(1, forks=forks)).address
        yield Reader(request.param, tmp_path, there)


@pytest.mark.parametrize("reader", pages_with(slow=False), indirect=True)
def test_what_a_page_shows_runs(reader):
    reader.read()


@pytest.mark.slow
@pytest.mark.parametrize("reader", pages_with(slow=True), indirect=True)
def test_what_a_page_shows_and_takes_long_runs(reader):
    reader.read(slow=True)


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.kind == "doctest" for block in blocks(page))])
def test_what_a_page_shows_at_a_prompt_is_answered_so(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    text = "\n".join(block.text for block in blocks(page) if block.kind == "doctest" and not block.mark)
    found = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    assert doctest.DocTestRunner().run(found).failed == 0
    drawn = set(re.findall(r"\"([\w.]+\.(?:svg|png|json))\"", text))
    assert {path.name for path in tmp_path.iterdir()} == drawn


@pytest.mark.parametrize(
    "module", [path for path in SOURCES if "    >>> " in path.read_text()], ids=lambda path: path.stem
)
def test_what_a_docstring_shows_at_a_prompt_is_answered_so(module):
    name = ".".join(module.relative_to(ROOT / "src").with_suffix("").parts)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.slow  # what README shows, too
def test_what_the_docstrings_of_public_names_show_runs(tmp_path):
    reader = Reader("docstrings", tmp_path, {})
    programs = []
    for name in set(gradtide.__all__) - {"errors"}:  # whose tree is no program
        told = blocks_of(name, inspect.getdoc(getattr(gradtide, name)) or "")
        programs += [[("<before>", 1, said.MODEL), (name, 1, block.text)] for block in told if ">>> " not in block.text]
    assert len(programs) == 2
    reader.python(programs, (2, 0))
