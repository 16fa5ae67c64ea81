"""What README and docs show: blocks of Python, of commands, and of what is no program.

A fence names its language. An indented block has commands, and what the last of them prints after an empty line; or
it is of `>>>`. What can't be run follows an invisible `<!-- not run: why -->`; all else that is none of these is
unknown, and a test fails.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
PAGES = tuple(
    str(path.relative_to(ROOT))
    for path in (*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "CHANGELOG.md"  # which tells of what was
)
NO_PROGRAM = ("ini", "json", "text", "toml", "yaml")
PROGRAMS = ("gradtide", "python", "torchrun")
OTHER_PROGRAMS = ("docker", "etcd", "kubectl", "nvidia-smi", "pip", "pkill", "ray", "sbatch")  # which no test runs
_MARK = re.compile(r"<!-- not run: (.+?) -->\s*")
_LINE = re.compile(r"(?:node-?\d\$ )?((?:[A-Z_]+=\S+ )*)(.*?)(?: +&)?")


@dataclass(frozen=True, slots=True)
class Command:
    """A line of one of our programs, without its comment; and what the page says that it prints."""

    page: str
    line: int
    text: str
    environment: dict[str, str] = field(default_factory=dict)
    says: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Block:
    """A mark says why it is not run."""

    page: str
    line: int
    kind: str  # python, doctest, commands, none, or unknown
    text: str
    mark: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[Command]:
        """Those of our programs; others are passed over."""
        said = [paragraph.splitlines() for paragraph in self.text.split("\n\n")]
        lines = [line for paragraph in said if _are_commands(paragraph) for line in [*paragraph, ""]]
        says = "\n\n".join("\n".join(paragraph) for paragraph in said if not _are_commands(paragraph))
        found = []
        for number, line in enumerate(lines):
            variables, text = _split(line)
            if text.startswith(tuple(f"{program} " for program in PROGRAMS)):
                environment = dict(pair.split("=", 1) for pair in variables.split())
                found.append(Command(self.page, self.line + number, _without_comment(text), environment))
        if says:
            found[-1] = Command(self.page, found[-1].line, found[-1].text, found[-1].environment, says)
        return found


@cache
def blocks(page: str) -> tuple[Block, ...]:
    return tuple(blocks_of(page, (ROOT / page).read_text()))


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Of a Markdown text. A mark that is not right before a block is an unknown block itself."""
    mark: Block | None = None
    for token in MarkdownIt("commonmark").parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("fence", "code_block"):
            if mark is not None and not mark.mark:
                yield mark
            yield Block(page, line + (token.type == "fence"), _kind(token), token.content, mark.mark if mark else "")
            mark = None
        elif mark is not None and token.map:
            yield mark
            mark = None
        if token.type == "html_block" and "not run" in token.content:
            found = _MARK.fullmatch(token.content)
            mark = Block(page, line, "unknown", token.content, found[1] if found else "")
    if mark is not None:
        yield mark


def _kind(token: Token) -> str:
    if token.type == "fence":
        language = token.info.strip()
        if language in NO_PROGRAM or language.startswith("{"):  # a directive of the site's
            return "none"
        return "python" if language == "python" else "unknown"
    if token.content.startswith(">>> "):
        return "doctest"
    paragraphs = [_are_commands(paragraph.splitlines()) for paragraph in token.content.split("\n\n")]
    return "commands" if paragraphs[0] and sorted(paragraphs, reverse=True) == paragraphs else "unknown"


def _are_commands(lines: list[str]) -> bool:
    words = [_split(line)[1].split(" ")[0] for line in lines]
    return all(word in (*PROGRAMS, *OTHER_PROGRAMS) or word.startswith("scripts/") for word in words)


def _split(line: str) -> tuple[str, str]:
    """Its variables, and the command: without the machine's name before it and the `&` after it."""
    found = _LINE.fullmatch(line)
    assert found is not None
    return found[1], found[2]


def _without_comment(command: str) -> str:
    words = shlex.shlex(command, posix=False)
    words.whitespace_split, words.commenters = True, "#"
    return " ".join(words)


def mentions(page: str) -> list[str]:
    """Commands in a sentence, between backticks: often without what they need."""
    inline = [
        part for token in MarkdownIt("commonmark").parse((ROOT / page).read_text()) for part in token.children or ()
    ]
    return [part.content for part in inline if part.type == "code_inline" and part.content.startswith("gradtide ")]
