"""Network namespaces joined by a bridge in ours: machines, as far as the network goes.

A port that is taken off the bridge loses every packet both ways and closes nothing: the other ends only see silence, as
with a cable that was pulled. A flow that is stalled loses what one end of it says, as at a middlebox that has forgotten
it: neither end is told, and new connections between the same two pass.
"""

import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gradtide.errors import CommunicationError, ConfigError

__all__ = ["Flow", "MachineNetwork", "flows_of"]

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NETWORK = "10.77.0."  # exists in our own namespace only
_ESTABLISHED = "01"
_COMMAND_S = 10.0
_DROP = "ip saddr . tcp sport . ip daddr . tcp dport @lost drop"


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a TCP connection."""

    source: str
    source_port: int
    target: str
    target_port: int

    @property
    def back(self) -> "Flow":
        return Flow(self.target, self.target_port, self.source, self.source_port)

    def __str__(self) -> str:
        return f"{self.source} . {self.source_port} . {self.target} . {self.target_port}"


class MachineNetwork:
    """The thread that enters it is in the bridge's namespace until it leaves."""

    own = f"{_NETWORK}1"

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._namespaces: dict[str, int] = {}
        self._ports: dict[str, str] = {}
        self.addresses: dict[str, str] = {}  # by the name of a machine
        self._lost: set[Flow] = set()
        self._filters = False
        with self._stack:
            self._stack.enter_context(_new_namespace())
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "hub", "type", "bridge")
            _ip("addr", "add", f"{self.own}/24", "dev", "hub")
            _ip("link", "set", "hub", "up")
            self._stack = self._stack.pop_all()

    def close(self) -> None:
        """Namespaces end with the last process in them."""
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()
        self._stack.close()

    def add(self, name: str) -> str:
        """A machine; returns its address."""
        number = len(self._namespaces)
        port, address = f"port{number}", f"{_NETWORK}{10 + number}"
        with _new_namespace():
            namespace = self._namespaces[name] = _open_namespace()
        self._ports[name], self.addresses[name] = port, address
        where = f"/proc/{os.getpid()}/fd/{namespace}"
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", where)
        _ip("link", "set", port, "master", "hub", "up")
        with self.at(name):
            _ip("addr", "add", f"{address}/24", "dev", "eth0")
            _ip("link", "set", "eth0", "up")
            _ip("link", "set", "lo", "up")
        return address

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """This thread, and what it starts, on that machine."""
        before = _open_namespace()
        _go_to(self._namespaces[name])
        try:
            yield
        finally:
            _go_to(before)
            os.close(before)

    def unplug(self, name: str) -> None:
        _ip("link", "set", self._ports[name], "nomaster")

    def plug(self, name: str) -> None:
        _ip("link", "set", self._ports[name], "master", "hub")

    def part(self, one: str, other: str) -> None:
        """Nothing passes between two machines any more, and neither is told: frames go to nobody."""
        for here, there in ((one, other), (other, one)):
            nobody = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
            with self.at(here):
                _ip("neigh", "replace", self.addresses[there], *nobody)

    def join(self, one: str, other: str) -> None:
        """As it was before `part`."""
        for here, there in ((one, other), (other, one)):
            with self.at(here):
                _ip("neigh", "del", self.addresses[there], "dev", "eth0")

    def stall(self, pid: int, random: Random) -> int:
        """About half of the connections that this process has, each in one direction, for as long as they last."""
        there = flows_of(pid)
        chosen = [flow for flow in there if random.random() < 0.5] or there
        # ports are used again: what has ended must not be in the way of what comes after it
        self._lost = self.stalled() | {random.choice((flow, flow.back)) for flow in chosen}
        self._drop(self._lost)
        return len(chosen)

    def stalled(self) -> set[Flow]:
        """Those that are lost, and that one of their ends at least still believes in."""
        there = set(flows_of("thread-self"))
        for name in self._namespaces:
            with self.at(name):
                there.update(flows_of("thread-self"))
        return {flow for flow in self._lost if flow in there or flow.back in there}

    def _drop(self, flows: Iterable[Flow]) -> None:
        words = "flush set netdev stalled lost\n"
        if not self._filters:
            ports = ", ".join(f'"{port}"' for port in self._ports.values())
            chains = "".join(
                f"chain {hook} {{ type filter hook {hook} devices = {{ {ports} }} priority 0; {_DROP}; }}\n"
                for hook in ("ingress", "egress")
            )
            kinds = "ipv4_addr . inet_service . ipv4_addr . inet_service"
            words = f"table netdev stalled {{ set lost {{ type {kinds}; }}\n{chains} }}\n"
        if elements := ", ".join(map(str, flows)):
            words += f"add element netdev stalled lost {{ {elements} }}\n"
        _run("nft", "-f", "-", said=words)
        self._filters = True


def flows_of(process: int | str) -> list[Flow]:
    """What each established connection on that process's machine says from there; nothing of a process that is gone."""
    try:
        lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [Flow(*_endpoint(row[1]), *_endpoint(row[2])) for row in rows if row[3] == _ESTABLISHED]


def _endpoint(word: str) -> tuple[str, int]:
    address, port = word.split(":")
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)


@contextmanager
def _new_namespace() -> Iterator[None]:
    """This thread, and what it starts, in a network of its own; then in the one it came from."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = _open_namespace()
    try:
        if libc.unshare(_NEW_NETWORK):
            raise ConfigError(
                f"cutting servers off needs network namespaces, not allowed here ({os.strerror(ctypes.get_errno())}); "
                "run it as root, or by: unshare --map-root-user gradtide chaos ..."
            )
        try:
            yield
        finally:
            _go_to(before)
    finally:
        os.close(before)


def _open_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _go_to(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        raise CommunicationError(f"can't go to another network: {os.strerror(ctypes.get_errno())}")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str, said: str = "") -> None:
    needed = {"ip": "iproute2, and a kernel that allows bridges and veth", "nft": "nftables, and Linux 5.16 or later"}
    try:
        done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=_COMMAND_S)
    except FileNotFoundError:
        raise ConfigError(f"this fault needs the command {command[0]}: {needed[command[0]]}") from None
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed: {done.stderr.strip()}; this fault needs {needed[command[0]]}")
