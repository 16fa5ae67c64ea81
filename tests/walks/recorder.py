"""Notes which files of gradtide are entered, by first entry, while a flag is up: in each thread, or in a process."""

import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import gradtide

_PACKAGE = str(Path(gradtide.__file__).parent) + os.sep
# What happens by the clock, or because a loop looks around, is left out with all that it calls; not, however, what a
# background thread receives for whoever waits.
BY_THE_CLOCK = {"tick", "_tick", "poll", "active", "is_over"}
LOOKING_AROUND = ("store/server/uplink.py", "store/client/upkeep.py")  # the coordinator's word, and a loop of its own
RECEIVING = {"receive_ready"}
TURN = ("store/server/peers.py", "poll")  # a server looks once in each turn of its loop
_BODIES = {"<module>"}  # a module that is imported on the way has not been entered for what it does


class Recorder:
    """One a process. Call `install` before the threads that are to be watched start."""

    def __init__(self, folder: Path, process: str, *, each_thread: bool = False) -> None:
        """The flag is shared by all processes that are given the same folder."""
        self._out = folder / f"{process}.json"
        self._each_thread = each_thread
        self.flag, self._turns = _shared(folder / "flag"), _shared(folder / f"{process}.turns")
        self._walks: dict[str, list[str]] = {}
        self._files: dict[str, str | None] = {}
        self._entered = threading.Condition()

    def install(self) -> None:
        threading.setprofile(lambda *_: self._watch_this_thread())  # the first call in a new thread
        self._watch_this_thread()

    def _watch_this_thread(self) -> None:
        walk = self._walks.setdefault(threading.current_thread().name if self._each_thread else "all", [])
        muted: list[FrameType] = []  # a frame by the clock, and one in it that receives

        def hook(frame: FrameType, event: str, _: object) -> None:
            if event == "return" and muted and frame is muted[-1]:
                muted.pop()
            if event != "call" or len(muted) > 2 or (file := self._file(frame)) is None:
                return
            name = frame.f_code.co_name
            if (file, name) == TURN:
                self._turns[0] = (self._turns[0] + 1) % 256
            clock = name in BY_THE_CLOCK | _BODIES or file in LOOKING_AROUND
            if (name in RECEIVING) if len(muted) == 1 else clock:
                muted.append(frame)
            if len(muted) != 1 and self.flag[0] and file not in walk:
                self._enter(walk, file)

        sys.setprofile(hook)

    def _enter(self, walk: list[str], file: str) -> None:
        with self._entered:
            walk.append(file)
            self._entered.notify_all()

    def wait_for_thread(self, name: str, timeout_s: float = 60.0) -> None:
        """Until that thread has begun."""
        with self._entered:
            assert self._entered.wait_for(lambda: self._walks.get(name), timeout_s), f"{name} has nothing to do"

    @staticmethod
    def wait_for_turns(folder: Path, process: str, timeout_s: float = 60.0) -> None:
        """Until a server has ended what it was doing: two turns of its loop begin from now on."""
        turns, deadline_s = _shared(folder / f"{process}.turns"), time.monotonic() + timeout_s
        before = turns[0]
        while (turns[0] - before) % 256 < 2:
            assert time.monotonic() < deadline_s, f"{process} does nothing"
            time.sleep(0.001)

    def _file(self, frame: FrameType) -> str | None:
        name = frame.f_code.co_filename
        if name not in self._files:
            self._files[name] = name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else None
        return self._files[name]

    def write(self) -> None:
        sys.setprofile(None)
        self._out.write_text(json.dumps({name: walk for name, walk in self._walks.items() if walk}))


def _shared(path: Path) -> mmap.mmap:
    """A byte that all processes see."""
    path.touch()
    os.truncate(path, 1)
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 1)
