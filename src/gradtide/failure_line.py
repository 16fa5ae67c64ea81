"""An exception as one line: what it says, what gradtide notes beside it, and where it was raised."""

import os
import signal
import sys
import traceback
from types import TracebackType

from gradtide.errors import GradtideError, PeerLost

__all__ = [
    "end_at_own_line",
    "find_where",
    "message_with_notes",
    "show_failures_in_short",
    "show_in_short",
    "without_frames_of",
]

_NOTE = "gradtide: "


def message_with_notes(error: BaseException) -> str:
    """Its text; notes of ours stand in its first line."""
    notes = [note.removeprefix(_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    first, *rest = str(error).splitlines() or [""]
    return "\n".join(["; ".join([first, *notes]), *rest])


def find_where(error: BaseException, *, own: bool = False) -> str:
    """The innermost line outside of gradtide and of installed packages, or else, if it need not be the user's `own`,
    the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_own(frame.filename)]
    for frame in reversed(users if users or own else frames):
        return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{os.path.basename(error.filename or '')}:{error.lineno}" if isinstance(error, SyntaxError) else ""


def _is_own(filename: str) -> bool:
    return not filename.startswith((sys.prefix, sys.base_prefix, os.path.dirname(__file__), "<"))


def end_at_own_line(error: BaseException) -> None:
    """Of an error of ours, whose text says what to do, the way that it took through gradtide is of no interest: cuts
    the frames below the innermost line of the user's."""
    found: BaseException | None = error if isinstance(error, GradtideError) else None
    while found is not None:
        trace, last = found.__traceback__, None
        while trace is not None:
            last = trace if _is_own(trace.tb_frame.f_code.co_filename) else last
            trace = trace.tb_next
        if last is None and found is not error:
            found.__traceback__ = None
        elif last is not None and isinstance(found, GradtideError):
            last.tb_next = None
        found = found.__cause__ or found.__context__


def show_failures_in_short() -> None:
    """From now on, if the program has no hook of its own for what nobody caught."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_in_short


def show_in_short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A Ctrl-C is a line, and so is the loss of a peer, whose own output says why; Python ends itself as ever."""
    if isinstance(error, KeyboardInterrupt | PeerLost):
        what = (
            "interrupted" if isinstance(error, KeyboardInterrupt) else f"{kind.__name__}: {message_with_notes(error)}"
        )
        where = find_where(error, own=True)
        print(f"gradtide: {what}{f' ({where})' if where else ''}", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once, without a word
    else:
        end_at_own_line(error)
        sys.__excepthook__(kind, error, error.__traceback__)


def without_frames_of(machinery: tuple[str, ...], trace: TracebackType | None) -> TracebackType | None:
    """From the first frame on that is of no such file: what ran a program is of no interest when it failed."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(machinery):
        trace = trace.tb_next
    return trace
