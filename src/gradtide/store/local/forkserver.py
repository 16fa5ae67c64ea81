"""A process with torch loaded that makes others by fork: a server is up in 40 to 70 ms, where an import takes 1.6 s.

Commands come as JSON lines on standard input, answers leave on standard output. Every process it made is watched: one
that dies is made again, until its group is stopped; a server that ends with exit code 0 has handed over its shards and
is gone for good. In each group's folder there is a socket where more servers can be asked for (starter.py). When
standard input ends, or the parent is gone, all are ended and their folders removed. Children die with this process
(processes/forking.py), so nothing is left however it ends.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from gradtide.compress.payload import is_finite
from gradtide.processes.forking import Children
from gradtide.processes.naming import name_process
from gradtide.processes.ready import can_read
from gradtide.store.local.roles import Role, run_role
from gradtide.store.local.scaling import More
from gradtide.store.local.starter import Starter
from gradtide.store.rules.arithmetic import Contribution
from gradtide.store.rules.updates import TorchArithmetic, update
from gradtide.store.wire.messages import KeySpec

__all__ = ["Alive", "Command", "main"]

_END_S = 5.0
_LISTEN_S = 30.0
_MIN_LIFE_S = 0.25  # a process that dies sooner than this is not made again at once


class Command(msgspec.Struct, frozen=True):
    """What the parent wants of the group of processes that lives in a folder."""

    do: str  # "start", "list" or "stop"
    folder: str
    roles: tuple[Role, ...] = ()


class Alive(msgspec.Struct, frozen=True):
    """A process that lives now."""

    role: str
    name: str
    pid: int


@dataclass(slots=True)
class _Child:
    role: Role
    folder: str
    pid: int
    started_s: float
    ready: int  # the end of a pipe that says when it listens, and ends when it dies

    def wait_until_it_listens(self) -> None:
        can_read([self.ready], _LISTEN_S)


@dataclass(slots=True)
class StoreForkServer:
    """Makes, watches and ends the coordinator and the servers of stores."""

    forked: Children = field(default_factory=Children)
    children: list[_Child] = field(default_factory=list)
    starters: list[Starter] = field(default_factory=list)
    buffer: bytes = b""

    def run(self) -> None:
        parent = os.getppid()
        print("ready", flush=True)
        while os.getppid() == parent:
            readable = self.forked.wait([0, *self.starters], 0.5)
            self._heal()
            for starter in self.starters:
                if starter in readable:
                    starter.hear(partial(self._start_more, starter))
            if 0 in readable and not self._read_commands():
                break
        for folder in {child.folder for child in self.children}:
            self._stop(folder)

    def _read_commands(self) -> bool:
        data = os.read(0, 1 << 16)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            command = msgspec.json.decode(line, type=Command)
            if command.do == "start":
                self._start(command.folder, command.roles)
                like = next((role for role in command.roles if role.role == "server"), None)
                if like is not None:
                    self.starters.append(Starter(command.folder, like))
            elif command.do == "stop":
                self._stop(command.folder)
            answer = [Alive(c.role.role, c.role.name, c.pid) for c in self.children if c.folder == command.folder]
            os.write(1, msgspec.json.encode(answer) + b"\n")
        return bool(data)

    def _start(self, folder: str, roles: Iterable[Role]) -> None:
        made = [self._make(role, folder) for role in roles]
        self.children += made
        for child in made:
            child.wait_until_it_listens()

    def _start_more(self, starter: Starter, wish: More) -> tuple[str, ...]:
        """Servers like those that the group began with. A name is free when its last process has ended."""
        folder, like = starter.folder, starter.like
        taken = {child.role.name for child in self.children if child.folder == folder}.union(wish.taken)
        free = (name for i in range(len(taken) + wish.count) if (name := f"server-{i}") not in taken)
        names = tuple(islice(free, wish.count))
        self._start(folder, [replace(like, name=name, address=f"unix:{folder}/{name}") for name in names])
        return names

    def _heal(self) -> None:
        """Makes again what has died, but for servers that were let go."""
        now_s, ended = time.monotonic(), dict(self.forked.ended())
        for i, child in reversed(list(enumerate(self.children))):
            status = ended.get(child.pid)
            if status is not None:
                child.pid = 0
                os.close(child.ready)
                if child.role.role == "server" and status == 0:
                    del self.children[i]
                    continue
                print(f"gradtide: {_obituary(child.role.name, status)}", file=sys.stderr, flush=True)
            if not child.pid and now_s - child.started_s >= _MIN_LIFE_S:
                self.children[i] = self._make(child.role, child.folder)

    def _make(self, role: Role, folder: str) -> _Child:
        if role.address.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(role.address[5:])  # what a killed predecessor left
        ready, listens = os.pipe2(os.O_CLOEXEC)
        pid = self.forked.fork()
        if pid == 0:
            os.close(ready)
            for starter in self.starters:
                starter.close_here()
            _live_as(role, listens)
        os.close(listens)
        return _Child(role, folder, pid, time.monotonic(), ready)

    def _stop(self, folder: str) -> None:
        for starter in self.starters:
            if starter.folder == folder:
                starter.close()
        self.starters = [starter for starter in self.starters if starter.folder != folder]
        going = [child for child in self.children if child.folder == folder and child.pid]
        self.children = [child for child in self.children if child.folder != folder]
        for child in going:
            os.kill(child.pid, signal.SIGINT)  # a server would hand over its shards at SIGTERM
        deadline_s = time.monotonic() + _END_S
        for child in going:
            while not os.waitpid(child.pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline_s:
                    os.kill(child.pid, signal.SIGKILL)
                time.sleep(0.002)
            os.close(child.ready)
        shutil.rmtree(folder, ignore_errors=True)


def _live_as(role: Role, listens: int) -> None:
    """The child's whole life; never returns."""
    try:
        name_process(role.name)
        with open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)
        run_role(role, tell=lambda address: os.write(listens, b"l"))
        os._exit(0)
    except KeyboardInterrupt:
        pass  # told to end before it could listen
    except BaseException as error:
        print(f"{role.name}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _obituary(name: str, status: int) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return f"{name} {how}; another is started in its place"


def _load_what_servers_use() -> None:
    """torch.optim imports much more of torch when its first optimizer is made, numba most of itself with its first
    kernel: seconds that every server would pay, and be late with its beats on a busy machine."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    arithmetic = TorchArithmetic()
    for name in ("sgd", "adam", "adagrad", "rmsprop"):
        block = arithmetic.create(KeySpec(name, (1,), "float32", update(name, lr=0.1)), torch.zeros(1))
        block.apply(block.combine([Contribution(None, torch.zeros(1))]))
    is_finite(np.zeros(1, np.float32))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; its end of the pipe then closes
    _load_what_servers_use()
    with contextlib.suppress(BrokenPipeError):  # who started us is gone already
        StoreForkServer().run()
    os._exit(0)  # all is stopped and removed; Python would take a second to unload torch, and somebody waits


if __name__ == "__main__":
    main()
