"""The `gradtide` command: loads what the asked command needs; turns our errors into one line and exit code 2."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from gradtide.cli.stopping import Signals
from gradtide.errors import GradtideError
from gradtide.linux import require_linux

__all__ = ["main"]

_EVERYWHERE = ("plan", "topology", "doctor")  # commands that don't need Linux
_INTERRUPTED = 130  # what typer makes of a KeyboardInterrupt


def main() -> None:
    """A user's mistake is one line, and exit code 2; so is a signal, and 128 + its number. What a user's code raised is
    shown whole, and then as one line."""
    warnings.showwarning = _show_warning
    with Signals() as signals:
        try:
            code = _run(sys.argv[1:], signals)
        except Exception as error:
            if signals.came:  # what is interrupted while it is imported may raise anything
                code = _INTERRUPTED
            elif isinstance(error, GradtideError):
                print(f"gradtide: {error}", file=sys.stderr)
                code = 2
            else:
                code = show_failure(error)
        except KeyboardInterrupt:
            code = _INTERRUPTED
        if signals.came and code == _INTERRUPTED:
            code = signals.say()
    sys.exit(code)


def _run(words: list[str], signals: Signals) -> int:
    if words[:1] == ["plan"] and not {"-h", "--help"} & {*words}:
        from gradtide.cli.plan.command import plan  # without the other commands and their library, which take 0.2 s

        signals.began = True
        _until_unread(lambda: plan(words[1:]))
        return 0
    if words[:1] == ["--install-completion"] and len(words) == 2:
        from gradtide.cli.shell_completion import install_completion

        install_completion(words[1])
        return 0
    if words and words[0] not in _EVERYWHERE and not words[0].startswith("-") and not {"-h", "--help"} & {*words}:
        require_linux(f"gradtide {words[0]}")
    from gradtide.cli.app import app
    from gradtide.cli.usage import UsageError, show_usage_error

    signals.began = True
    try:
        return app(prog_name="gradtide", standalone_mode=False) or 0
    except UsageError as error:
        return show_usage_error(error, words)


def show_failure(error: Exception) -> int:
    """A traceback from where the command's own work began, and its last line; returns the exit code."""
    import traceback

    import typer

    from gradtide.failure_line import find_where, message_with_notes, without_frames_of

    machinery = os.path.dirname(__file__), os.path.dirname(typer.__file__)
    error.__traceback__ = without_frames_of(machinery, error.__traceback__) or error.__traceback__
    traceback.print_exception(error)
    first = (message_with_notes(error).splitlines() or [""])[0]
    kind, where = type(error).__name__, find_where(error)
    print(f"gradtide: {kind}{f': {first}' if first else ''}{f' ({where})' if where else ''}", file=sys.stderr)
    return 1


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    """Ours is one line; others' have their usual form."""
    ours = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parent.parent)
    shown = f"gradtide: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line)
    print(shown, end="", file=file or sys.stderr)


def _until_unread(command: Callable[[], None]) -> None:
    """A reader that has seen enough (`| head`) is no error of ours."""
    try:
        command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print has nowhere to go
        sys.exit(1)
