"""What workers run: a script or a module. Mistakes in naming it are found before anything is started."""

import contextlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType

from gradtide.errors import ConfigError

__all__ = ["Target", "check_target", "misplaced", "names_in"]

# What a script that reads its arguments mentions, of Python's own and of libraries.
_READS_ARGUMENTS = (
    "argv",
    "ArgumentParser",
    "CLI",
    "absl",
    "add_argument",
    "argparse",
    "click",
    "docopt",
    "fire",
    "hydra",
    "typer",
    "tyro",
)


@dataclass(frozen=True, slots=True)
class Target:
    """As on Python's own command line: `script.py args...` or `-m module args...`."""

    name: str  # of the script's file, or of the module
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def as_arguments(self) -> list[str]:
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> "Target":
        is_module = arguments[0] == "-m"
        name, *rest = arguments[is_module:]
        return cls(name, tuple(rest), is_module)


def check_target(target: Target, search: list[str]) -> None:
    """Raises ConfigError if there is nothing to run, and SyntaxError if Python can't read the script."""
    if target.is_module:
        top = target.name.partition(".")[0]
        if not top.isidentifier() or PathFinder.find_spec(top, search) is None:
            raise ConfigError(f"no module named {target.name!r} here or among the installed ones; check the name")
        return
    path = Path(target.name)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the Python file in it, or a package with -m")
    if not path.exists():
        raise ConfigError(f"there is no script {path}; check the path, or use -m for a module")
    try:
        data = path.read_bytes()
        text = io.TextIOWrapper(io.BytesIO(data), tokenize.detect_encoding(io.BytesIO(data).readline)[0]).read()
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); check its permissions") from None
    except (SyntaxError, UnicodeDecodeError):  # detect_encoding calls an unknown or wrong encoding a SyntaxError
        raise ConfigError(f"{path} is not a Python file") from None
    if "\0" in text:
        raise ConfigError(f"{path} is not a Python file")
    compile(text, str(path.absolute()), "exec", dont_inherit=True)


def misplaced(target: Target, options: Iterable[str]) -> str:
    """The first of these options that stands behind the script, which does not know it; "" if there is none."""
    found = next((word.partition("=")[0] for word in target.arguments if word.partition("=")[0] in options), "")
    with contextlib.suppress(OSError):
        if found and not target.is_module:
            text = _text(target)
            reads = any(word in text for word in _READS_ARGUMENTS)
            return "" if reads and found[2:].replace("-", "_") in text.replace("-", "_") else found
    return ""


def _text(target: Target) -> str:
    return Path(target.name).read_text(errors="replace")


def names_in(target: Target) -> set[str]:
    """The names that a script uses itself; none of a module, or of what can't be read."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        if not target.is_module:
            return set(_names(compile(Path(target.name).read_bytes(), target.name, "exec", dont_inherit=True)))
    return set()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
