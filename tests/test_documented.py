"""Every example in README and docs runs: Python for real, and commands too, unless documented_pages.py says why not."""

import ast
import doctest
import importlib
import inspect
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import typer

import documented_pages as said
import gradtide
from documented import PAGES, ROOT, Block, Command, blocks, blocks_of, mentions
from documented_pages import Page, Run, Shown
from gradtide.cli.app import app
from gradtide.cli.plan.command import parser
from gradtide.store.local.servers import local_servers
from loaded_python import loaded_python

STARTED_BY = {"gradtide": ("-m", "gradtide"), "python": (), "torchrun": ("-m", "torch.distributed.run", "--standalone")}
ALREADY: set[str] = set()  # plans are the same on every page
SOURCES = sorted((ROOT / "src").rglob("*.py"))
RUNNER = Path(__file__).parent / "run_documented.py"


@dataclass(slots=True)
class Reader:
    """Does in a folder what a page shows, in its order."""

    page: str
    folder: Path
    there: dict[str, object]  # for what is written instead of the page's words
    lasting: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def told(self) -> Page:
        return said.PAGES.get(self.page, Page())

    def read(self, slow: bool = False) -> None:
        for name, what in self.told.files.items():
            (self.folder / name).write_text(what if isinstance(what, str) else what.before + self.block(what).text)
        if self.told.before:
            self.python([[("<before>", 1, self.told.before)]], (0, 0))
        for way, acts in groupby(self.acts(slow), key=lambda act: isinstance(act, Run) and (act.workers, act.servers)):
            if way is False:
                for command in acts:
                    self.command(command)
            else:
                self.python([list(self.parts(run)) for run in acts], way)
        self.end()

    def acts(self, slow: bool) -> Iterator[Run | Command]:
        """In the order of the page. What takes long is left out, or all else."""
        shown = python_blocks(self.page)
        runs = {number: run for run in self.runs() for number in run.blocks[:1]}
        for block in blocks(self.page):
            if not slow and block in shown and (run := runs.get(shown.index(block))):
                yield run
            elif block.kind == "commands" and not block.mark:
                told = (command for command in block.commands if not reason(command, said.NOT_RUN))
                yield from (command for command in told if bool(reason(command, said.SLOW)) == slow)

    def runs(self) -> tuple[Run, ...]:
        """Those of the page's; blocks that nobody speaks of are one more, in which nothing is taken for granted."""
        shown = python_blocks(self.page)
        taken = {number for run in self.told.runs for number in run.blocks}
        taken |= {number for page, number in said.ELSEWHERE if page == self.page}
        taken |= {shown.index(block) for block in map(self.block, self.files_shown()) if block in shown}
        rest = tuple(number for number in range(len(shown)) if number not in taken)
        return (*self.told.runs, Run(rest)) if rest else self.told.runs

    def files_shown(self) -> list[Shown]:
        return [what for what in self.told.files.values() if isinstance(what, Shown)]

    def block(self, shown: Shown) -> Block:
        (found,) = (block for block in blocks(self.page) if block.text.startswith(shown.begins))
        return found

    def instead(self, text: str) -> str:
        for old, new in self.told.instead.items():
            text = text.replace(old, new.format(**self.there))
        return text

    def parts(self, run: Run) -> Iterator[tuple[str, int, str]]:
        shown = python_blocks(self.page)
        for number in run.blocks:
            text = self.instead(shown[number].text)
            for first, piece in statements(text) if run.each else [(0, text)]:
                yield (
                    f"<before {self.page}>",
                    1,
                    re.sub(r"{\w+(\[\d\])?}", lambda found: found[0].format(**self.there), run.before),
                )
                yield str(ROOT / self.page), shown[number].line + first, piece
                yield f"<after {self.page}>", 1, run.after

    def python(self, programs: list[list[tuple[str, int, str]]], way: tuple[int, int]) -> None:
        (self.folder / "programs.json").write_text(json.dumps(programs))
        job = ["-m", "gradtide", "run", "--workers", str(way[0]), "--servers", str(way[1])] if way[0] else []
        done = self.start(*job, str(RUNNER), "programs.json")
        output, _ = done.communicate(timeout=120)
        assert done.returncode == 0, output

    def command(self, command: Command) -> None:
        if command.text.startswith("gradtide plan") and not command.says and command.text in ALREADY:
            return
        ALREADY.add(command.text)
        program, *words = shlex.split(self.instead(command.text))
        variables = {name: self.instead(value) for name, value in command.environment.items()}
        if command.text.startswith("gradtide train"):
            words += ["--epochs", "1"]
        begun = self.start(*STARTED_BY[program], *words, **variables)
        if program == "gradtide" and words[0] in said.LASTING:
            self.lasting.append(begun)
            assert begun.stdout is not None
            line = begun.stdout.readline()
            while not re.search("listens at|dashboard: |servers at", line):
                assert line, command.where
                line = begun.stdout.readline()
            return
        output, _ = begun.communicate(timeout=120)
        assert begun.returncode == 0, f"{command.where}\n{output}"
        assert re.search(self.told.prints.get(command.text, ""), output), f"{command.where}\n{output}"
        if not any(matches(command, pattern) for pattern in said.MEASURED):
            for line in command.says.splitlines():
                assert " ".join(line.split()) in " ".join(output.split()), f"{command.where}\n{output}"

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "110", **variables}
        return subprocess.Popen(
            [loaded_python(), *words],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def end(self) -> None:
        for process in reversed(self.lasting):
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
            assert process.returncode in (0, 130), output


def python_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "python" and not block.mark]


def page_commands(page: str) -> list[Command]:
    return [command for block in blocks(page) if block.kind == "commands" for command in block.commands]


def reason(command: Command, why: dict[str, str]) -> str:
    return next((reason for pattern, reason in why.items() if matches(command, pattern)), "")


def matches(command: Command, pattern: str) -> bool:
    return fnmatch(f"{command.page}: {command.text}", pattern)


def statements(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        yield statement.lineno - 1, "\n".join(lines[statement.lineno - 1 : statement.end_lineno])


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


@pytest.fixture
def reader(request, tmp_path, forks):
    there = {"folder": tmp_path, "ports": free_ports(3), "root": ROOT}
    with ExitStack() as stack:
        if "{store}" in repr(said.PAGES.get(request.param)):
            there["store"] = stack.enter_context(local_servers(1, forks=forks)).address
        yield Reader(request.param, tmp_path, there)


@pytest.mark.parametrize(
    "reader", [page for page in PAGES if python_blocks(page) or page_commands(page)], indirect=True
)
def test_what_a_page_shows_runs(reader):
    reader.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    "reader",
    [page for page in PAGES if any(reason(command, said.SLOW) for command in page_commands(page))],
    indirect=True,
)
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


def test_what_the_docstrings_of_public_names_show_runs(tmp_path):
    reader = Reader("docstrings", tmp_path, {})
    programs = []
    for name in set(gradtide.__all__) - {"errors"}:  # whose tree is no program
        told = blocks_of(name, inspect.getdoc(getattr(gradtide, name)) or "")
        programs += [[("<before>", 1, said.MODEL), (name, 1, block.text)] for block in told if ">>> " not in block.text]
    assert len(programs) == 2
    reader.python(programs, (2, 0))
