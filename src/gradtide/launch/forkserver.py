"""A process with torch loaded that makes workers by fork: a worker is up in milliseconds, where an import takes 2 s.

It has no thread but its own when it forks. Workers die with it (processes/forking.py), what they started is ended with
them, and when the launcher is gone, however it went, nothing stays behind.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from gradtide.launch.messages import COMMANDS, Ended, Forward, Ready, Start, receive, send
from gradtide.launch.target import Target
from gradtide.launch.worker import live
from gradtide.processes.forking import Children, become_reaper

__all__ = ["main", "serve"]

_LEAVE_S = 0.3  # what a worker has started may take so long to leave, Python's resource tracker for example
_GONE_S = 2.0


@dataclass(slots=True)
class WorkerForkServer:
    """Makes workers, watches them, hands them signals."""

    control: socket.socket
    children: Children = field(default_factory=Children)
    ranks: dict[int, int] = field(default_factory=dict)  # of living workers, by pid
    deadlines_s: dict[int, float] = field(default_factory=dict)  # when to kill a worker that was sent a signal, by pid
    leaving_s: dict[int, float] = field(default_factory=dict)  # when to kill what a gone worker left, by its old pid

    def run(self) -> Start | None:
        """Until the launcher is gone. In a worker it returns at once, with what the worker is to be."""
        with contextlib.suppress(OSError):  # the launcher is gone already: the first read says so
            send(self.control, Ready())
        while True:
            readable = self.children.wait([self.control], self._until_next_deadline())
            self._bury()
            self._kill_the_late()
            if self.control not in readable:
                continue
            received = receive(self.control, COMMANDS)
            if received is None:
                self._end_everything()
                return None
            command, descriptors = received
            if isinstance(command, Forward):
                self._forward(command)
            elif self._make(command, descriptors):
                return command

    def _make(self, start: Start, descriptors: list[int]) -> bool:
        """True in the worker."""
        pid = self.children.fork()
        if pid == 0:
            self.control.close()
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[1], 2)
        else:
            self.ranks[pid] = start.rank
        for descriptor in descriptors:
            os.close(descriptor)
        return pid == 0

    def _forward(self, command: Forward) -> None:
        for pid in [pid for pid, rank in self.ranks.items() if rank in command.ranks]:
            os.kill(pid, command.number)
            deadline_s = time.monotonic() + command.grace_s
            self.deadlines_s[pid] = min(deadline_s, self.deadlines_s.get(pid, deadline_s))

    def _until_next_deadline(self) -> float | None:
        deadlines_s = [*self.deadlines_s.values(), *self.leaving_s.values()]
        return max(0.0, min(deadlines_s) - time.monotonic()) if deadlines_s else None

    def _kill_the_late(self) -> None:
        now_s = time.monotonic()
        for pid in [pid for pid, deadline_s in self.deadlines_s.items() if deadline_s <= now_s]:
            os.kill(pid, signal.SIGKILL)
            del self.deadlines_s[pid]
        for group in [group for group, deadline_s in self.leaving_s.items() if deadline_s <= now_s]:
            for pid in _children():  # orphans are ours now, so none of these numbers can be somebody else's
                with contextlib.suppress(PermissionError):
                    if os.getpgid(pid) == group:
                        os.kill(pid, signal.SIGKILL)
            del self.leaving_s[group]

    def _bury(self) -> None:
        """Tells who has ended, and asks what they had started to leave. Orphans that became ours are buried as well."""
        for pid, status in self.children.ended():
            rank = self.ranks.pop(pid, None)
            if rank is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # died early; is another user's now
                    os.killpg(pid, signal.SIGTERM)  # not yet reaped, so the number is still its own
                self.leaving_s[pid] = time.monotonic() + _LEAVE_S
                self.deadlines_s.pop(pid, None)
                with contextlib.suppress(OSError):  # the launcher is gone: the next read says so
                    send(self.control, Ended(rank, status, time.monotonic()))

    def _end_everything(self) -> None:
        """Until nobody is left: as parents die, their children become ours (become_reaper)."""
        started_s, asked = time.monotonic(), set[int]()
        while (left := {*self.ranks, *_children()}) and time.monotonic() < started_s + _GONE_S:
            late = time.monotonic() > started_s + _LEAVE_S
            for pid in left:
                with contextlib.suppress(PermissionError):
                    if late or pid in self.ranks:
                        os.kill(pid, signal.SIGKILL)
                    elif pid not in asked:
                        asked.add(pid)
                        os.kill(pid, signal.SIGTERM)
            self.children.wait([], 0.02)
            self._bury()


def _children() -> list[int]:
    with contextlib.suppress(OSError):  # some kernels lack this file; the workers themselves are known anyway
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _load(module: str) -> None:
    gc.disable()  # an import makes objects that stay: looking for garbage among them takes a tenth of the time
    if module:
        importlib.import_module(module).load()
    gc.enable()
    gc.freeze()  # nor need workers look at them, which would also copy their pages


def serve(control: socket.socket, preload: str) -> Start:
    """Makes workers until the launcher is gone, and ends with it. In a worker it returns what that is to be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_reaper()
    _load(preload)
    start = WorkerForkServer(control).run()
    if start is None:
        sys.stdout.flush()
        os._exit(0)
    return start


def main(arguments: list[str]) -> None:
    """Arguments: two sockets' descriptors, the module to load, and the target. Returns when a worker's script does."""
    control, reports = (socket.socket(fileno=int(descriptor)) for descriptor in arguments[:2])
    for one in (control, reports):
        one.set_inheritable(False)  # what a script starts has no business with them
    start = serve(control, arguments[2])
    live(start, Target.from_arguments(arguments[3:]), reports)
