"""An exception as one line: what it says, what gradtide notes beside it, and where it was raised."""

import os
import sys
import traceback
from types import TracebackType

__all__ = ["find_where", "message_with_notes", "without_frames_of"]

_NOTE = "gradtide: "


def message_with_notes(error: BaseException) -> str:
    """Its text; notes of ours stand in its first line."""
    notes = [note.removeprefix(_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    first, *rest = str(error).splitlines() or [""]
    return "\n".join(["; ".join([first, *notes]), *rest])


def find_where(error: BaseException) -> str:
    """The innermost line outside of gradtide and of installed packages, or else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    elsewhere = sys.prefix, sys.base_prefix, os.path.dirname(__file__), "<"
    own = [frame for frame in frames if not frame.filename.startswith(elsewhere)]
    for frame in reversed(own or frames):
        return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{os.path.basename(error.filename or '')}:{error.lineno}" if isinstance(error, SyntaxError) else ""


def without_frames_of(machinery: tuple[str, ...], trace: TracebackType | None) -> TracebackType | None:
    """From the first frame on that is of no such file: what ran a program is of no interest when it failed."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(machinery):
        trace = trace.tb_next
    return trace
