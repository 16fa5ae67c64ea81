"""A store on this machine whose processes talk TCP, with or without TLS, as they would between machines."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradtide.store.local.forkserver import Command
from gradtide.store.local.roles import Role
from gradtide.store.local.servers import Forks
from gradtide.transport.keys import make_secret_file

__all__ = ["TcpStore", "tcp_store"]


@dataclass(frozen=True, slots=True)
class TcpStore:
    """Where its coordinator listens, the secret to get in, and its processes, the coordinator first."""

    address: str
    secret_file: str
    pids: tuple[int, ...]


@contextmanager
def tcp_store(servers: int, tls: bool, forks: Forks) -> Iterator[TcpStore]:
    folder = tempfile.mkdtemp(prefix="gradtide-")  # which goes with the processes
    secret = f"{folder}/secret"
    make_secret_file(Path(secret))
    coordinator, *others = (f"{'tls' if tls else 'tcp'}:127.0.0.1:{port}" for port in _free_ports(servers + 1))
    roles = [Role(role="coordinator", name="coordinator", address=coordinator, secret_file=secret)]
    for i, address in enumerate(others):
        roles.append(
            Role(
                role="server", name=f"server-{i}", address=address, coordinator=coordinator, expected=servers,
                secret_file=secret,
            )
        )  # fmt: skip
    try:
        alive = forks.ask(Command("start", folder, tuple(roles)))
        yield TcpStore(coordinator, secret, tuple(process.pid for process in alive))
    finally:
        forks.ask(Command("stop", folder))


def _free_ports(count: int) -> list[int]:
    """All different: each is held until all are known."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in held]
    for sock in held:
        sock.close()
    return ports
