"""A worker's life after the fork: it becomes what `python script.py args...` would be, and tells how it failed.

What a fork shares and a fresh process would not is undone: environment, streams, random numbers of torch and numpy
(Python's own are seeded again by Python), `__main__`, `sys.argv` and `sys.path`. An exception that nobody caught goes
to the launcher instead of standard error, without the frames of this file, so that the first one can be shown first.
"""

import contextlib
import importlib.util
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from gradtide.environment import extend_environment
from gradtide.errors import CommunicationError, ConfigError
from gradtide.failure_line import end_at_own_line, find_where, message_with_notes, show_in_short, without_frames_of
from gradtide.launch.job import end_in_words
from gradtide.launch.messages import Failure, Start, send
from gradtide.launch.target import Target
from gradtide.processes.naming import name_process

__all__ = ["live", "live_as"]

_TRACEBACK_CHARACTERS = 40_000  # a message must fit into a socket's buffer
_MESSAGE_CHARACTERS = 2_000
_PEER_WORDS = ("Connection closed by peer", "Connection reset by peer", "gloo/transport")
_MACHINERY = (os.path.dirname(__file__) + os.sep, "<frozen importlib", "<frozen runpy", importlib.util.__file__)


def live(start: Start, target: Target, reports: socket.socket) -> None:
    """Runs the target as __main__. Ends by returning, or by the SystemExit or KeyboardInterrupt that ends Python."""
    _draw_numbers_of_its_own()
    live_as(start, " ".join((target.name, *target.arguments)), lambda: _run(target), reports)


def live_as(start: Start, doing: str, run: Callable[[], None], reports: socket.socket) -> None:
    """The same of anything that a worker can run."""
    _become_fresh(start)
    name_process(f"worker-{start.rank}", doing)
    pid = os.getpid()
    try:
        run()
    except SystemExit as error:
        sys.last_value = error if error.code else None  # for who asks at the end whether it is a good one
        if os.getpid() == pid:  # and not a child that the script has forked
            _report_exit(start.rank, error, reports)
        raise
    except BaseException as error:
        if os.getpid() != pid:
            raise
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__  # as Python does
        error.__traceback__ = without_frames_of(_MACHINERY, error.__traceback__)
        end_at_own_line(error)
        _report(start.rank, error, reports)
        if not isinstance(error, KeyboardInterrupt):
            sys.exit(1)
        sys.excepthook = lambda *ignored: None  # Python now ends itself by SIGINT, as ever, but has been heard already
        raise


def _become_fresh(start: Start) -> None:
    extend_environment(start.variables)
    os.setpgid(0, 0)  # what it starts can be ended with it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # else lines would wait until a pipe's worth of them is there


def _draw_numbers_of_its_own() -> None:
    """A fresh process seeds these from the kernel as it loads them; after a fork all workers would draw the same."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _run(target: Target) -> None:
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [target.name, *target.arguments]
    attributes: dict[str, Any] = main.__dict__
    if target.is_module:
        _enter(os.getcwd())
        spec = _find(target.name)
        assert spec.origin is not None
        path = sys.argv[0] = spec.origin
        attributes.update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached)
    else:
        _enter(os.path.dirname(os.path.realpath(target.name)))
        path = os.path.join(os.getcwd(), target.name)
        attributes.update(__loader__=SourceFileLoader("__main__", path), __cached__=None)
    attributes.update(__file__=path, __annotations__={}, __builtins__=sys.modules["builtins"])
    _Loader("__main__", path).exec_module(main)


def _enter(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _find(name: str) -> ModuleSpec:
    """The module, or a package's __main__."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    return spec


class _Loader(SourceFileLoader):
    """Loads the main module as Python does: without looking for, or leaving, compiled bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _report_exit(rank: int, error: SystemExit, reports: socket.socket) -> None:
    """Tells the launcher of `sys.exit(3)` or `sys.exit("why")` at once: Python may need seconds to end itself, and
    meanwhile the others fail because of it."""
    at_s, words = time.monotonic(), ""
    if error.code is not None and not isinstance(error.code, int):
        words = str(error.code)
        print(words, file=sys.stderr)  # as Python would at the end
        error.code = 1
    code = (error.code or 0) & 0xFF
    if code:
        first, *_ = words.splitlines() or [""]
        how = f"{end_in_words(code)}{f': {first[:_MESSAGE_CHARACTERS]}' if first else ''}"
        where, fell = find_where(error, own=True), _fell_with_a_peer(error)
        _tell(Failure(rank, at_s, "", how, where, fell=fell, exit_code=code), reports)


def _report(rank: int, error: BaseException, reports: socket.socket) -> None:
    """Tells the launcher. If the script has a hook of its own for exceptions, that one shows the traceback."""
    at_s, text = time.monotonic(), ""
    if sys.excepthook in (sys.__excepthook__, show_in_short):
        text = "".join(traceback.format_exception(error))
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    failure = Failure(
        rank=rank,
        at_s=at_s,
        kind=type(error).__name__,
        message=_shortened(message_with_notes(error), _MESSAGE_CHARACTERS),
        where=find_where(error),
        traceback=_shortened(text, _TRACEBACK_CHARACTERS),
        fell=_fell_with_a_peer(error),
        refused=isinstance(error, ConfigError),
        exit_code=128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1,
    )
    _tell(failure, reports)


def _tell(failure: Failure, reports: socket.socket) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()  # what came before the failure is shown before it
    with contextlib.suppress(OSError):  # the launcher is gone, and so are we in a moment
        send(reports, failure)


def _fell_with_a_peer(error: BaseException | None) -> bool:
    """Whether it looks as if another worker's end is to blame."""
    while error is not None:
        if isinstance(error, CommunicationError | ConnectionError) or any(word in str(error) for word in _PEER_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _shortened(text: str, characters: int) -> str:
    """The beginning and the end: a traceback's last lines say most."""
    if len(text) <= characters:
        return text
    return (
        f"{text[: characters // 2]}\n... {len(text) - characters:,} characters left out ...\n{text[-characters // 2 :]}"
    )
