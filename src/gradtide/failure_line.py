"""An exception as one line: what it says, what gradtide notes beside it, and where it was raised."""

import os
import signal
import sys
import threading
import traceback
from types import TracebackType

from gradtide.environment import read_environment
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
_PEER_S = 5.0


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
    if not isinstance(error, GradtideError):
        return
    for found in _chain(error):
        trace, last = found.__traceback__, None
        while trace is not None:
            last = trace if _is_own(trace.tb_frame.f_code.co_filename) else last
            trace = trace.tb_next
        if last is None and found is not error:
            found.__traceback__ = None
        elif last is not None and isinstance(found, GradtideError):
            last.tb_next = None


def _chain(error: BaseException) -> list[BaseException]:
    """With what it was raised from, or while handling it."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def show_failures_in_short() -> None:
    """From now on, if the program has no hook of its own for what nobody caught."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_in_short


def show_in_short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A Ctrl-C is a line, and so is the loss of a peer, whose own output says why; Python ends itself as ever."""
    if isinstance(error, KeyboardInterrupt | PeerLost):
        interrupted = isinstance(error, KeyboardInterrupt)
        what = "interrupted" if interrupted else f"{kind.__name__}: {message_with_notes(error)}"
        where = find_where(error, own=True)
        print(f"gradtide: {what}{f' ({where})' if where else ''}", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once, without a word
        if not interrupted:
            _let_the_peer_end_first()
    else:
        end_at_own_line(error)
        sys.__excepthook__(kind, error, error.__traceback__)


def _let_the_peer_end_first() -> None:
    """Torchrun takes who ends first for the cause, and then ends us: a peer that left may take seconds to be gone."""
    launch = read_environment().launch
    if launch is not None and launch.agent_store:
        sys.stderr.flush()
        threading.Event().wait(_PEER_S)


def without_frames_of(machinery: tuple[str, ...], trace: TracebackType | None) -> TracebackType | None:
    """From the first frame on that is of no such file: what ran a program is of no interest when it failed."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(machinery):
        trace = trace.tb_next
    return trace
