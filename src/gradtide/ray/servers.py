"""The store of a job on Ray: its coordinator beside the driver, its servers beside the workers of their nodes."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradtide.checkpoint.shelf import Shelf
from gradtide.errors import CommunicationError
from gradtide.processes.scratch import ScratchFolder
from gradtide.ray.agents import AgentPlace
from gradtide.store.local.forkserver import Command
from gradtide.store.local.roles import Role
from gradtide.store.local.servers import Forks
from gradtide.store.local.status import inspect
from gradtide.store.wire.messages import Leave, encode
from gradtide.transport.authenticate import dial, family_of, parse_address
from gradtide.transport.connection import open_connection
from gradtide.transport.keys import Credentials

__all__ = ["ServersOnNodes", "newest_of_store"]

_SAY_S = 2.0
_AGAIN_S = 0.5  # before one that has ended is started again


def newest_of_store(checkpoints: str) -> str:
    """The newest checkpoint of servers in that folder; empty if there is none."""
    newest = Shelf(checkpoints).newest()
    return newest.address if newest is not None and newest.manifest.shards else ""


@dataclass(slots=True)
class ServersOnNodes:
    """`start_role(name, node, arguments)` is the head's. A server that ends is started again where it was; one whose
    node is lost, on the node that takes its place."""

    servers: int
    replicas: int
    start_role: Callable[[str, str, tuple[str, ...]], None]
    checkpoints: str = ""
    address: str = ""  # of the coordinator
    _homes: dict[str, AgentPlace | None] = field(default_factory=dict)
    _due_s: dict[str, float] = field(default_factory=dict)
    _forks: Forks | None = None
    _scratch: ScratchFolder | None = None

    def start_coordinator(self, host: str, secret_file: str, restore: str) -> None:
        """In a process that is made again if it dies, with its journal; it ends with this one."""
        self._scratch = ScratchFolder()
        self.address = f"tcp:{host}:{_free_port(host)}"
        role = Role(
            role="coordinator", name="coordinator", address=self.address, secret_file=secret_file,
            journal=f"{self._scratch.path}/journal", restore=restore,
        )  # fmt: skip
        self._forks = Forks()
        self._forks.ask(Command("start", self._scratch.path, (role,)))

    def settle(self, place: AgentPlace) -> None:
        """This node has joined: servers that have no home move in, as many as it is to have."""
        room = place.share.servers
        names = [f"server-{i}" for i in range(self.servers)]
        for name in [name for name in names if self._homes.get(name) is None][:room]:
            self._homes[name] = place
            self._start(name)

    def lost(self, place: AgentPlace) -> None:
        for name, home in self._homes.items():
            if home is place:
                self._homes[name] = None
                self._due_s.pop(name, None)

    def ended(self, name: str) -> None:
        if self._homes.get(name) is not None:
            self._due_s[name] = time.monotonic() + _AGAIN_S

    def strike_off(self, workers: Sequence[int], credentials: Credentials) -> None:
        """These have died with their node: rounds need not wait until the coordinator finds that out by itself, which
        takes a wire that was cut some six seconds. Returns at once."""
        asked = threading.Thread(target=_say_goodbye_for, args=(self.address, credentials, set(workers)), daemon=True)
        asked.start()

    def look(self) -> None:
        """To be called now and then."""
        now_s = time.monotonic()
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[name]
            self._start(name)

    def _start(self, name: str) -> None:
        home = self._homes[name]
        assert home is not None
        options = ["--coordinator", self.address, "--name", name, "--servers", str(self.servers)]
        options += ["--replicas", str(self.replicas)]
        options += ["--checkpoints", self.checkpoints] if self.checkpoints else []
        self.start_role(name, home.name, ("serve", f"tcp:{home.node.address}:0", *options))

    def close(self) -> None:
        if self._forks is not None:
            self._forks.close()
        if self._scratch is not None:
            self._scratch.remove()


def _say_goodbye_for(address: str, credentials: Credentials, workers: set[int]) -> None:
    with contextlib.suppress(CommunicationError):  # it will notice by itself
        decree = inspect(address, credentials).decree
        for member in decree.members if decree is not None else ():
            if member.worker in workers:
                line = dial(parse_address(address), credentials, "worker", _SAY_S)
                connection = open_connection(line, address)
                try:
                    connection.send(encode(Leave(member.client, member.incarnation)))
                    connection.flush()
                    connection.part(_SAY_S)
                finally:
                    connection.close()


def _free_port(host: str) -> int:
    with socket.socket(family_of(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
