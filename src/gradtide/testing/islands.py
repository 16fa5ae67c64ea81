"""A store whose servers are on machines of their own, as far as the network goes, so that one can be unplugged.

Each server has a network namespace, joined to ours by a bridge. A port that is taken off the bridge loses every packet
both ways and closes nothing: the other ends only see silence, as with a cable that was pulled.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from gradtide.errors import CommunicationError, ConfigError, PeerTimeout
from gradtide.store.forkserver import Alive
from gradtide.store.roles import Role, run_role
from gradtide.transport.authenticate import make_secret_file, read_secret_file

__all__ = ["Islands", "main"]

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NETWORK = "10.77.0."  # exists in our own namespace only
_PORT = 7077
_LISTEN_S = 60.0
_END_S = 10.0


class Islands:
    """A running store, as LocalServers is one; `unplug` and `plug` are what it is for. Used in the thread it was made
    in, which is in the store's network until it is closed."""

    def __init__(self, servers: int, *, replicas: int = 0) -> None:
        self._stack = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with self._stack:
            self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-"))
            self.secret_file = f"{self.folder}/secret"
            make_secret_file(Path(self.secret_file))
            self._stack.enter_context(_own_network())
            self._stack.callback(self._end)
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "hub", "type", "bridge")
            _ip("addr", "add", f"{_NETWORK}1/24", "dev", "hub")
            _ip("link", "set", "hub", "up")
            self.address = f"tcp:{_NETWORK}1:{_PORT}"
            self._start_coordinator()
            for i in range(servers):
                self._start_server(i, servers, replicas)
            self._wait_until_all_listen()
            self._stack = self._stack.pop_all()

    @property
    def processes(self) -> list[Alive]:
        roles = {name: "coordinator" if name == "coordinator" else "server" for name in self._processes}
        return [Alive(roles[name], name, process.pid) for name, process in self._processes.items()]

    def unplug(self, name: str) -> None:
        _ip("link", "set", _port(name), "nomaster")

    def plug(self, name: str) -> None:
        _ip("link", "set", _port(name), "master", "hub")

    def close(self) -> None:
        """Ends the processes, and with them their networks; this thread is where it was before."""
        self._stack.close()

    def __enter__(self) -> "Islands":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start_coordinator(self) -> None:
        role = Role(
            role="coordinator", name="coordinator", address=self.address, journal=f"{self.folder}/journal",
            insecure_network=True,
        )  # fmt: skip
        self._begin(role, "")

    def _start_server(self, i: int, servers: int, replicas: int) -> None:
        own = f"{_NETWORK}{10 + i}"
        role = Role(
            role="server", name=f"server-{i}", address=f"tcp:{own}:{_PORT}", coordinator=self.address,
            expected=servers, replicas=replicas, insecure_network=True,
        )  # fmt: skip
        with _own_network():
            process = self._begin(role, f"{own}/24")
        _ip("link", "add", _port(role.name), "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
        _ip("link", "set", _port(role.name), "master", "hub", "up")
        assert process.stdin is not None
        process.stdin.write(b"your port is there\n")
        process.stdin.flush()

    def _begin(self, role: Role, own: str) -> subprocess.Popen[bytes]:
        """In the network that this thread is in now."""
        command = [sys.executable, "-m", "gradtide.testing.islands", self.secret_file, own]
        pipe, word = subprocess.PIPE, msgspec.json.encode(role).decode()
        process = subprocess.Popen([*command, word], stdin=pipe, stdout=pipe)
        self._processes[role.name] = process
        return process

    def _wait_until_all_listen(self) -> None:
        for name, process in self._processes.items():
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], _LISTEN_S)
            if not readable or not process.stdout.readline():
                raise PeerTimeout(f"{name} did not listen within {_LISTEN_S:g} s; its output says why")

    def _end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)  # at SIGTERM a server would hand over its shards, to whom?
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            process.communicate()


def _port(name: str) -> str:
    return name.replace("server-", "port")


@contextmanager
def _own_network() -> Iterator[None]:
    """This thread, and what it starts, in a network of its own; then in the one it came from."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_NEW_NETWORK):
            raise ConfigError(
                f"cutting servers off needs network namespaces, not allowed here ({os.strerror(ctypes.get_errno())}); "
                "run it as root, or by: unshare --map-root-user gradtide chaos ..."
            )
        try:
            yield
        finally:
            if libc.setns(before, _NEW_NETWORK):
                raise CommunicationError(f"can't go back to the network before: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(before)


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_END_S)
    except FileNotFoundError:
        raise ConfigError("cutting servers off needs the command ip; install iproute2") from None
    if done.returncode:
        raise ConfigError(
            f"ip {' '.join(words)} failed: {done.stderr.strip()}; does the kernel allow bridges and veth?"
        )


def main(secret_file: str, own: str, role: str) -> None:
    """A process of the store: waits for its port, then is what it is to be, until standard input ends."""
    if own:
        sys.stdin.readline()
        _ip("addr", "add", own, "dev", "eth0")
        _ip("link", "set", "eth0", "up")
        _ip("link", "set", "lo", "up")
    threading.Thread(target=_end_with_parent, name="gradtide-parent", daemon=True).start()
    word, secret = msgspec.json.decode(role, type=Role), read_secret_file(secret_file)
    run_role(word, secret, lambda where: print(f"{word.name} listens at {where}", flush=True))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
