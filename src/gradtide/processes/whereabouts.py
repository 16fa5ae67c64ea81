"""Where in its code a process is, for another of this host that waits for it: a thread that answers who asks.

It sleeps until somebody does, and ends with the last group that asked for it. A process whose interpreter is kept busy
by something that holds its lock does not answer.
"""

import contextlib
import os
import secrets
import socket
import sys
import sysconfig
import threading
from types import FrameType

from gradtide.processes.credentials import user_of

__all__ = ["ask_whereabouts", "close_whereabouts", "open_whereabouts", "own_whereabouts"]

_ANSWER_S = 0.3
_TEXT_BYTES = 1024


class _Answerer:
    """One a process, as that has one main thread: how many want it, where it listens."""

    def __init__(self) -> None:
        self.lock, self.wanted, self.token = threading.RLock(), 0, 0  # a garbage collection may close a group here
        self.listener: socket.socket | None = None
        self.thread: threading.Thread | None = None


_here = _Answerer()


def open_whereabouts() -> int:
    """Answers from now on, until it was closed as often. What to ask by: a number for the others; 0 if it can't be."""
    with _here.lock:
        _here.wanted += 1
        if _here.wanted == 1:
            _here.token = secrets.randbits(62) | 1
            listener = _here.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listener.bind(_address(_here.token))
                listener.listen(16)
                thread = threading.Thread(target=_answer, args=(listener,), name="gradtide-whereabouts", daemon=True)
                thread.start()
                _here.thread = thread
            except (OSError, RuntimeError):
                listener.close()
                _here.listener, _here.token = None, 0
        return _here.token


def close_whereabouts() -> None:
    with _here.lock:
        _here.wanted = max(0, _here.wanted - 1)
        if _here.wanted or _here.listener is None:
            return
        listener, thread, _here.listener, _here.thread = _here.listener, _here.thread, None, None
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # which ends the thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(_ANSWER_S)


def ask_whereabouts(token: int) -> str:
    """Where the process that gave this number is; nothing if it does not say so at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.settimeout(_ANSWER_S)
        with contextlib.suppress(OSError):
            asked.connect(_address(token))
            if user_of(asked) == os.getuid():
                return asked.recv(_TEXT_BYTES).decode(errors="replace")
    return ""


def own_whereabouts() -> str:
    """The innermost line of this process's main thread that is neither ours nor of an installed package."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = frame
    elsewhere = _elsewhere()
    while frame is not None and frame.f_code.co_filename.startswith(elsewhere):
        frame = frame.f_back
    shown = frame or innermost
    if shown is None:
        return ""
    return f"{shown.f_code.co_filename}:{shown.f_lineno} ({shown.f_code.co_name})"


def _elsewhere() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(f"{path}{os.sep}" for path in paths), os.path.dirname(os.path.dirname(__file__)) + os.sep, "<")


def _answer(listener: socket.socket) -> None:
    with listener:
        while True:
            try:
                asker, _ = listener.accept()
            except OSError:
                return
            with asker, contextlib.suppress(OSError):
                if user_of(asker) == os.getuid():
                    asker.send(own_whereabouts().encode()[:_TEXT_BYTES])


def _address(token: int) -> str:
    return f"\0gradtide-where-{os.getuid()}-{token:x}"


def _forget_in_child() -> None:
    # A forked child has no such thread, and must not keep its parent's socket.
    if _here.listener is not None:
        _here.listener.close()
    _here.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_in_child)
