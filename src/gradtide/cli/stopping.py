"""A command that is told to end, by Ctrl-C or SIGTERM: whatever it was doing, one line and no traceback."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Self

__all__ = ["Signals", "exit_code"]

_AGAIN_S = 0.25


class Signals:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; `came` says which it was. A command that handles them itself
    takes them over."""

    def __init__(self) -> None:
        self.came = 0
        self.began = False  # whether the command was loaded, and may have started something
        self._before: dict[int, object] = {}

    def say(self) -> int:
        """The line; returns the exit code. From now on another signal ends the process at once, without a word."""
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        what = "interrupted" if self.came == signal.SIGINT else f"ended by {signal.Signals(self.came).name}"
        left = "; nothing is left running" if self.began else " before anything was started"
        print(f"gradtide: {what}{left}", file=sys.stderr, flush=True)
        return exit_code(KeyboardInterrupt(self.came))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = self.came or number
        if not self.began:
            os._exit(self.say())  # no module is left half imported, and nothing has to be ended
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._insist)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        raise KeyboardInterrupt(self.came)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        """Some modules, interrupted while they are imported, swallow it and go on. It is said again once they are done:
        C++ that imports, as torch's does, ends the process with words of its own."""
        if not _is_ending(sys.exception()) and not _is_importing(frame):
            raise KeyboardInterrupt(self.came)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's `&`, wants it ignored
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self.came and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if self.came else handler)  # type: ignore[arg-type]


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell expects of a process that ends because of this signal."""
    return 128 + int(stop.args[0] if stop.args else signal.SIGINT)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _is_ending(error: BaseException | None) -> bool:
    """Whether an interrupt is on its way out, through what has to be closed."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
