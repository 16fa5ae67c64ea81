"""A store whose processes are on machines of their own, as far as the network goes.

Each can be killed, unplugged, or lose flows; the coordinator's journal may be on a small disk, which can be filled.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec

from gradtide.chaos.networks import MachineNetwork
from gradtide.errors import ConfigError, PeerTimeout
from gradtide.processes.ready import can_read
from gradtide.store.local.forkserver import Alive
from gradtide.store.local.roles import Role, run_role
from gradtide.store.local.status import inspect
from gradtide.transport.keys import make_secret_file, read_credentials

__all__ = ["Islands", "main"]

_NEW_MOUNTS = 0x20000  # CLONE_NEWNS
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE
_DISK_BYTES = 1 << 20
_PORT = 7077
_LISTEN_S = 60.0
_END_S = 10.0


class Islands:
    """A running store, as LocalServers is one. Used in the thread it was made in, which is in the store's network until
    it is closed."""

    def __init__(self, servers: int, *, replicas: int = 0, small_disk: bool = False) -> None:
        self._stack = ExitStack()
        self._roles: dict[str, Role] = {}
        self._machines: dict[str, str] = {}  # of processes that are not alone on theirs, which has another name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._small_disk = small_disk
        with self._stack:
            self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-"))
            self.secret_file = f"{self.folder}/secret"
            make_secret_file(Path(self.secret_file))
            os.mkdir(f"{self.folder}/disk")
            self._network = MachineNetwork()
            self._stack.callback(self._network.close)
            self._stack.callback(self._end)
            self._begin_all(servers, replicas)
            self._stack = self._stack.pop_all()

    @property
    def processes(self) -> list[Alive]:
        return [Alive(self._roles[name].role, name, process.pid) for name, process in self._processes.items()]

    def close(self) -> None:
        """Ends the processes, and with them their networks; this thread is where it was before."""
        self._stack.close()

    def __enter__(self) -> "Islands":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- faults ---

    def unplug(self, name: str) -> None:
        self._network.unplug(name)

    def plug(self, name: str) -> None:
        self._network.plug(name)

    def stall(self, name: str, random: Random) -> None:
        """Some of its connections lose, from now on, what one end says."""
        self._network.stall(self._processes[name].pid, random)

    def believes_in_what_is_stalled(self) -> bool:
        """Does anybody still use a connection that was stalled?"""
        return bool(self._network.stalled())

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        _forget(self._processes[name])

    def start_again(self, name: str) -> None:
        """On the same machine; it need not listen yet when this returns."""
        self._begin(self._roles[name])

    def fill_disk(self) -> None:
        for _ in range(2):  # what was being written in the first turn has failed by the second, and is gone
            with open(self._filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))

    def free_disk(self) -> None:
        os.unlink(self._filler)

    def misses_its_disk(self) -> bool:
        """Has the coordinator found that its disk is full?"""
        told = inspect(self.address, read_credentials(self.secret_file), _END_S)
        return any("journal" in worry for worry in told.worries)

    @property
    def _filler(self) -> str:
        """The disk is mounted where the coordinator is, and nowhere else."""
        return f"/proc/{self._processes['coordinator'].pid}/root{self.folder}/disk/filler"

    # --- processes ---

    def _begin_all(self, servers: int, replicas: int) -> None:
        self.address = f"tcp:{self._network.add('coordinator')}:{_PORT}"
        self._begin(
            Role(
                role="coordinator", name="coordinator", address=self.address, journal=f"{self.folder}/disk/journal"
            )
        )  # fmt: skip
        for i in range(servers):
            name = f"server-{i}"
            address = f"tcp:{self._network.add(name)}:{_PORT}"
            role = Role(
                role="server", name=name, address=address, coordinator=self.address,
                expected=servers, replicas=replicas,
            )  # fmt: skip
            self._begin(role)
        for name in self._processes:
            self.wait_until_it_listens(name)

    def _begin(self, role: Role) -> None:
        disk = f"{self.folder}/disk" if self._small_disk and role.role == "coordinator" else ""
        command = [sys.executable, "-m", "gradtide.chaos.islands", self.secret_file, disk]
        pipe, word = subprocess.PIPE, msgspec.json.encode(role).decode()
        with self._network.at(self._machines.get(role.name, role.name)):
            self._processes[role.name] = subprocess.Popen(
                [*command, word], stdin=pipe, stdout=pipe, start_new_session=True
            )
        self._roles[role.name] = role

    def wait_until_it_listens(self, name: str) -> None:
        stdout = self._processes[name].stdout
        assert stdout is not None
        if not can_read([stdout], _LISTEN_S) or not stdout.readline():
            raise PeerTimeout(f"{name} did not listen within {_LISTEN_S:g} s; its output says why")

    def _end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)  # at SIGTERM a server would hand over its shards, to whom?
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            _forget(process)


def _forget(process: subprocess.Popen[bytes]) -> None:
    """Of one that was killed: its pipes are closed, and it is waited for."""
    with process:
        pass


def _mount(folder: str) -> None:
    """A small disk that this process alone can see, and that ends with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_NEW_MOUNTS)
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None)
        or libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={_DISK_BYTES}".encode())
    ):
        raise ConfigError(f"a small disk needs mount namespaces and tmpfs: {os.strerror(ctypes.get_errno())}")


def main(secret_file: str, disk: str, role: str) -> None:
    """A process of the store: what it is to be, until standard input ends. `disk`: the folder to put a small one at."""
    if disk:
        _mount(disk)
    threading.Thread(target=_end_with_parent, name="gradtide-parent", daemon=True).start()
    word, credentials = msgspec.json.decode(role, type=Role), read_credentials(secret_file)
    run_role(word, credentials, lambda where: print(f"{word.name} listens at {where}", flush=True))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
