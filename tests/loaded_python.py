"""A Python that has torch, numba and matplotlib loaded: for tests that start job after job and assert what they train.

`loaded_python()` is the path of a program that takes what `python` takes (-m, -c, -u, a script) and does the same, but
a process here has made it by fork: what it would import, two to four seconds each time, is there already. The program
hands over its arguments, environment, open files and network namespace, passes signals on, and ends as the process
does. In that process `sys.executable` is the program as well, so a job's fork servers are as quick. What a fork shares
and a fresh process would not is undone. Tests of how processes start and end use `sys.executable`.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TextIO

import leftovers

# Python with nothing loaded takes 10 ms. A file is told by its number: those that a program would inherit.
_PROGRAM = """#!{interpreter} -IS
import _socket, json, os, signal, sys
if sys.argv[1:2] == [] or sys.argv[1].startswith("-") and sys.argv[1] not in ("-c", "-m", "-u"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
files = []
for name in os.listdir("/proc/self/fd"):
    try:
        if os.get_inheritable(int(name)):
            files.append(int(name))
    except OSError:
        pass
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
link.connect({address!r})
told = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), files]).encode()
network = os.open("/proc/self/ns/net", os.O_RDONLY)
rights = b"".join(file.to_bytes(4, sys.byteorder) for file in [*files, network])
link.sendmsg([len(told).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
link.sendall(told)
pid = int.from_bytes(link.recv(4), "big")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = int.from_bytes(link.recv(4), "big", signed=True)
if status >= 0:
    os._exit(status)
signal.signal(-status, signal.SIG_DFL) if status not in (-9, -19) else None
os.kill(os.getpid(), -status)
os._exit(128 - status)
"""


@cache
def loaded_python() -> str:
    """Starts the process at the first call. It ends with this one."""
    folder = tempfile.mkdtemp(prefix="loaded-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program, address = f"{folder}/python", f"{folder}/socket"
    interpreter = f"{folder}/interpreter"  # a first line takes no folder with a space in its name
    os.symlink(sys.executable, interpreter)
    with open(program, "w") as file:
        file.write(_PROGRAM.format(interpreter=interpreter, python=sys.executable, address=address))
    os.chmod(program, 0o700)
    command = [sys.executable, __file__, program, address, str(_source())]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # each wish has its own
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    leftovers.share(process.pid)
    atexit.register(process.wait)
    assert process.stdin is not None
    assert process.stdout is not None
    atexit.register(process.stdin.close)
    process.stdout.readline()
    process.stdout.close()
    return program


def _source() -> Path:
    import gradtide

    return Path(gradtide.__file__).parents[1]


# --- the process ---


@dataclass(frozen=True, slots=True)
class Wish:
    """What a program is to be. Its files have other numbers here: `held`, after which comes its network namespace."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    files: list[int]
    held: list[int]


@dataclass(slots=True)
class Loaded:
    """Makes a process for each program that asks, and tells it how that ended. One whose program is gone is killed."""

    listener: socket.socket
    links: dict[int, socket.socket] = field(default_factory=dict)  # by the process's number

    def run(self) -> Wish | None:
        """Until standard input ends. In a process that was made it returns at once, with what that is to be."""
        from gradtide.processes.forking import Children

        children = Children()
        while True:
            readable = children.wait([0, self.listener, *self.links.values()], None)
            if 0 in readable:
                return None
            for pid in [pid for pid, link in self.links.items() if link in readable]:
                os.kill(pid, signal.SIGKILL)
            for pid, status in children.ended():
                with contextlib.suppress(OSError), self.links.pop(pid) as link:
                    link.sendall(status.to_bytes(4, "big", signed=True))
            if self.listener in readable and (wish := self._make(children.fork)) is not None:
                return wish

    def _make(self, fork: Callable[[], int]) -> Wish | None:
        link, _ = self.listener.accept()
        head, held, _, _ = socket.recv_fds(link, 4, 250)
        told = b""
        while len(told) < int.from_bytes(head, "big"):
            told += link.recv(1 << 20)
        pid = fork()
        if pid == 0:
            return Wish(*json.loads(told), held)
        self.links[pid] = link
        link.sendall(pid.to_bytes(4, "big"))
        for file in held:
            os.close(file)
        return None


def load() -> None:
    """What jobs, their servers and the command import. No thread of ours is started."""
    gc.disable()
    from gradtide.parallel import preload

    preload.load()
    import matplotlib as mpl

    mpl.use("Agg")

    import gradtide.cli.app
    import gradtide.cli.train.command
    import gradtide.store.local.forkserver
    import gradtide.train.digits
    import gradtide.train.loop
    import gradtide.train.together.worker  # noqa: F401

    gc.enable()
    gc.freeze()


def become(wish: Wish, program: str, fresh_path: list[str]) -> None:
    """As if it had just been started: files, folder, environment, threads, random numbers and where modules are."""
    import torch

    from gradtide.launch.worker import _draw_numbers_of_its_own

    os.setsid()
    _go_to_network(wish.held.pop())
    _take_files(wish)
    os.chdir(wish.folder)
    os.environ.clear()
    os.environ.update(wish.environment)
    sys.executable = program
    if "OMP_NUM_THREADS" in wish.environment:
        torch.set_num_threads(int(wish.environment["OMP_NUM_THREADS"]))
    _draw_numbers_of_its_own()
    sys.path[:] = [path for path in wish.environment.get("PYTHONPATH", "").split(os.pathsep) if path] + fresh_path
    sys.path_importer_cache.clear()


def _go_to_network(file: int) -> None:
    """As root alone, and so only if it is another one."""
    import ctypes

    if os.fstat(file).st_ino != os.stat("/proc/self/ns/net").st_ino:
        new_network = 0x40000000  # os.setns has it from Python 3.12 on
        assert ctypes.CDLL(None, use_errno=True).setns(file, new_network) == 0, os.strerror(ctypes.get_errno())
    os.close(file)


def _take_files(wish: Wish) -> None:
    import fcntl

    above = 1000
    held = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in wish.held]
    os.closerange(3, above)
    for file, number in zip(held, wish.files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for number in {0, 1, 2} - set(wish.files):
        os.close(number)


def live(arguments: list[str]) -> None:
    """Ends by returning, or as the code does."""
    from gradtide.launch.target import Target
    from gradtide.launch.worker import _run

    if arguments[0] == "-u":  # as torchrun starts its workers
        sys.stdout, sys.stderr = (_unbuffered(stream) for stream in (sys.stdout, sys.stderr))
        arguments = arguments[1:]
    if arguments[0] != "-c":
        _run(Target.from_arguments(arguments))
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c", *arguments[2:]]
    sys.path.insert(0, "")
    exec(compile(arguments[1], "<string>", "exec", dont_inherit=True), main.__dict__)


def _unbuffered(stream: TextIO) -> TextIO:
    raw = open(stream.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


def main(program: str, address: str, source: str) -> None:
    fresh_path = sys.path[1:]  # without this file's folder
    sys.path.insert(0, source)  # the tests' own gradtide, which may not be the one that is installed
    load()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        wish = Loaded(listener).run()
    if wish is None:
        os._exit(0)
    become(wish, program, fresh_path)
    pid = os.getpid()
    try:
        live(wish.arguments)
    except SystemExit as error:
        if os.getpid() != pid or not isinstance(error.code, int | None):
            raise
        leave(error.code or 0)
    if os.getpid() == pid:  # and not a worker that a job's fork server has made here, which ends as ever
        leave(0)


def leave(code: int) -> None:
    """To take apart all that is loaded would take 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
