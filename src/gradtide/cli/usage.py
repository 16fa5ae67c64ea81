"""A mistake in the words of a command, as one line: typer would show a usage, a hint and an error."""

import re
from collections.abc import Sequence
from typing import Any

from typer import BadParameter, echo

from gradtide.calling import meant

__all__ = ["UsageError", "show_usage_error"]

UsageError: type[Exception] = BadParameter.__bases__[0]  # typer has it from click, or from its own copy of click
# What torchrun, mpirun and accelerate call it.
_OF_TORCHRUN = {
    **dict.fromkeys(["--nproc-per-node", "--nproc", "--num-processes", "-n", "-np"], "say --workers 2"),
    **dict.fromkeys(
        ["--nnodes", "--node-rank", "--master-addr", "--master-port", "--rdzv-endpoint", "--rdzv-backend"],
        "on several machines use torchrun, or --engine ray",
    ),
    "--standalone": "leave it out: without --engine all workers are on this machine",
}


def show_usage_error(error: Any, words: Sequence[str]) -> int:
    """Prints the line, or the help of a group of commands if none was named; returns the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        echo(error.format_message(), err=True)
    else:
        command = error.ctx.command_path if error.ctx is not None else f"gradtide {words[0]}"
        echo(f"gradtide: {_mistake(error, words)}; see {command} -h", err=True)
    return int(error.exit_code)


def _mistake(error: Any, words: Sequence[str]) -> str:
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "NoSuchOption":
        if ours := _OF_TORCHRUN.get(error.option_name.replace("_", "-")):
            return f"no such option {error.option_name}; {ours}"
        return f"no such option {error.option_name}{meant(error.option_name, error.possibilities or ())}"
    if kind == "BadOptionUsage":
        return f"{error.option_name} {'takes no' if 'not take' in error.message else 'needs a'} value"
    if kind == "MissingParameter" and parameter is not None:
        return f"{_name(parameter)} is missing"
    if parameter is not None:
        return f"{_name(parameter)}{_value(parameter, words)}: {_wanted(error.message)}"
    return _as_ours(error.format_message())


def _wanted(message: str) -> str:
    kinds = {"integer": "a whole number", "number": "a number", "float": "a number", "boolean": "true or false"}
    wanted = next((words for kind, words in kinds.items() if kind in message), None)
    return _as_ours(message) if wanted is None else f"{wanted} is wanted"


def _name(parameter: Any) -> str:
    """--workers, or an argument by its name."""
    named = [name for name in parameter.opts if name.startswith("-")]
    return str(named[0] if named else parameter.name.upper())


def _value(parameter: Any, words: Sequence[str]) -> str:
    for i, word in enumerate(words):
        name, _, value = word.partition("=")
        if name.startswith("-") and name in parameter.opts:
            return f" {value or ' '.join(words[i + 1 : i + 2])}"
    return ""


def _as_ours(text: str) -> str:
    """A sentence of typer's as part of ours."""
    text = re.sub(r"\. Did you mean (one of: )?'([^']*)'.*\?$", r" (did you mean \2?)", " ".join(text.split()))
    text = text.removesuffix(".")
    return text[:1].lower() + text[1:].replace("argument(s)", "arguments")
