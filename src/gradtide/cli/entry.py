"""The `gradtide` command: loads what the asked command needs; turns our errors into one line and exit code 2."""

import os
import sys
from collections.abc import Callable

from gradtide.errors import GradtideError
from gradtide.linux import require_linux

__all__ = ["main"]

_EVERYWHERE = ("plan", "topology", "doctor")  # commands that don't need Linux


def main() -> None:
    """A user's mistake is one line and exit code 2."""
    try:
        _run(sys.argv[1:])
    except GradtideError as error:
        print(f"gradtide: {error}", file=sys.stderr)
        sys.exit(2)


def _run(words: list[str]) -> None:
    if words[:1] == ["plan"]:  # without the other commands and their library, whose import takes 0.2 s
        from gradtide.cli.plan.command import plan

        _until_unread(lambda: plan(words[1:]))
        return
    if words and words[0] not in _EVERYWHERE and not words[0].startswith("-") and not {"-h", "--help"} & {*words}:
        require_linux(f"gradtide {words[0]}")
    from gradtide.cli.app import app

    app()


def _until_unread(command: Callable[[], None]) -> None:
    """A reader that has seen enough (`| head`) is no error of ours."""
    try:
        command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print has nowhere to go
        sys.exit(1)
