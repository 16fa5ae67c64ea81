"""Does what a page shows, in its order: runs its Python and its commands in a folder."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

import documented_pages as said
from documented import ROOT, Block, Command, blocks
from documented_pages import Page, Run, Shown
from loaded_python import loaded_python

STARTED_BY = {"gradtide": ("-m", "gradtide"), "python": (), "torchrun": ("-m", "torch.distributed.run", "--standalone")}
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
        for way, acts in groupby(self.acts(slow), key=job_of):
            if way is None:
                for command in acts:
                    self.command(command)
            else:
                self.python([list(self.parts(run)) for run in acts], way[:2])
        for process in reversed(self.lasting):
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
            assert process.returncode in (0, 130), output

    def acts(self, slow: bool) -> Iterator[Run | Command]:
        """In the order of the page. What takes long is left out, or all else."""
        shown = python_blocks(self.page)
        runs = {number: run for run in self.runs() for number in run.blocks[:1]}
        for block in blocks(self.page):
            if block in shown:
                run = runs.get(shown.index(block))
                if run is not None and run.slow == slow:
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
            text = text.replace(old, self.filled(new))
        return text

    def filled(self, text: str) -> str:
        return re.sub(r"{\w+(\[\d\])?}", lambda found: found[0].format(**self.there), text)

    def parts(self, run: Run) -> Iterator[tuple[str, int, str]]:
        shown = python_blocks(self.page)
        for number in run.blocks:
            text = self.instead(shown[number].text)
            for first, piece in statements(text) if run.each else [(0, text)]:
                yield f"<before {self.page}>", 1, self.filled(run.before)
                yield str(ROOT / self.page), shown[number].line + first, piece
                yield f"<after {self.page}>", 1, run.after

    def python(self, programs: list[list[tuple[str, int, str]]], way: tuple[int, int]) -> None:
        (self.folder / "programs.json").write_text(json.dumps(programs))
        job = ["-m", "gradtide", "run", "--workers", str(way[0]), "--servers", str(way[1])] if way[0] else []
        done = self.start(*job, str(RUNNER), "programs.json")
        output, _ = done.communicate(timeout=120)
        assert done.returncode == 0, output

    def command(self, command: Command) -> None:
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


def job_of(act: Run | Command) -> tuple[int, int, int] | None:
    return (act.workers, act.servers, act.job) if isinstance(act, Run) else None


def python_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "python" and not block.mark]


def first_program(page: str) -> str:
    """The page's first block of Python, after what its reader has."""
    before = next((run.before for run in said.PAGES[page].runs if 0 in run.blocks), "")
    return f"{before}\n{python_blocks(page)[0].text}"


def lines_on_machines(page: str, program: str) -> list[tuple[str, str]]:
    """Each line of this program that begins with the name of its machine: (machine, line)."""
    shown = "\n".join(block.text for block in blocks(page) if block.kind == "commands")
    return re.findall(rf"^(node-?\d)\$ ({program} .+?)(?: +#.*)?$", shown, re.MULTILINE)


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
