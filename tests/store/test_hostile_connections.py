"""Thousands of connections that say anything, before and after they have proven themselves, to real processes.

Over TCP, TLS, a UNIX socket, and one with shared memory: no process ends, none holds more than twice what one client
may have on its way, and a client that was there all the time, and one that comes then, are served as ever.
"""

import contextlib
import os
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hostile import lying_bytes, mutated_bytes, mutated_message, well_formed, wire_bytes

import gradtide
from gradtide.errors import CommunicationError
from gradtide.store.local.forkserver import Command
from gradtide.store.local.roles import Role
from gradtide.store.local.servers import Forks
from gradtide.store.wire.credit import CREDIT_BYTES
from gradtide.store.wire.messages import encode
from gradtide.transport.authenticate import Address, dial, parse_address
from gradtide.transport.frames import HEADER, Kind
from gradtide.transport.handshake import greeting
from gradtide.transport.keys import Credentials, make_secret_file, read_credentials
from gradtide.transport.shared_ring import make_ring
from gradtide.transport.tls import TlsEnd

WAYS = ("tcp", "tls", "unix", "shared memory")
MOST_BYTES = 2 * CREDIT_BYTES  # more than before, of each process
_OPEN = 48  # connections that stay open beside each other
_A_PUSH = 100  # connections, to one push of the client that means well
_PATIENCE_S = 5.0


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[tuple[Forks, Path]]:
    """Makes processes whose words are kept in a file."""
    said, before = tmp_path / "said", os.dup(2)
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        forks = Forks()
    finally:
        os.dup2(before, 2)
        os.close(before)
    with forks:
        yield forks, said


@dataclass
class Target:
    """A store of one coordinator and one server, at addresses of one kind."""

    forks: Forks
    folder: Path
    way: str
    addresses: dict[str, Address] = field(default_factory=dict)
    secret_file: Path | None = None
    pids: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)  # bytes

    def __enter__(self) -> "Target":
        self.folder.mkdir(mode=0o700)
        on_wire = self.way in ("tcp", "tls")
        if on_wire:
            self.secret_file = self.folder / "secret"
            make_secret_file(self.secret_file)
        for name in ("coordinator", "s"):
            text = f"{self.way}:127.0.0.1:{free_port()}" if on_wire else f"unix:{self.folder}/{name}"
            self.addresses[name] = parse_address(text)
        c, s = (str(self.addresses[name]) for name in ("coordinator", "s"))
        secret = str(self.secret_file or "")
        roles = (
            Role(role="coordinator", name="coordinator", address=c, secret_file=secret),
            Role(role="server", name="s", address=s, coordinator=c, secret_file=secret, roots=(str(self.folder),)),
        )
        for alive in self.forks.ask(Command("start", str(self.folder), roles)):
            self.pids[alive.name] = alive.pid
        return self

    def __exit__(self, *error: object) -> None:
        self.forks.ask(Command("stop", str(self.folder)))

    @property
    def credentials(self) -> Credentials:
        return read_credentials(self.secret_file) if self.secret_file else Credentials()

    def connect(self) -> gradtide.Store:
        return gradtide.connect(str(self.addresses["coordinator"]), secret_file=self.secret_file)

    def note_memory(self) -> None:
        for name, pid in self.pids.items():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest there was is forgotten
            self.before[name] = most_bytes(pid)

    def grown_bytes(self) -> dict[str, int]:
        """What each process held at most, beyond what it had then."""
        alive = {alive.name: alive.pid for alive in self.forks.ask(Command("list", str(self.folder)))}
        assert alive == self.pids, "one has ended, and was made again"
        return {name: most_bytes(pid) - self.before[name] for name, pid in self.pids.items()}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def most_bytes(pid: int) -> int:
    """The most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


class Crowd:
    """Whoever connects and means no good. Some stay, and are pushed out by those who come later."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.source = target, random.Random(seed)
        self.known = well_formed(target.folder)
        self.plain = [wire_bytes(encode(message), body) for message, body in self.known]
        self.memory = make_ring() if target.way == "shared memory" else None
        self.open: deque[socket.socket] = deque()
        self.counts: Counter[str] = Counter()

    def come(self) -> None:
        """One more."""
        address = self.target.addresses[self.source.choice(("coordinator", "s"))]
        proven = self.source.random() < 0.6
        try:
            sock, tls = self._dial(address) if proven else (connect_to(address), None)
        except (CommunicationError, OSError):
            self.counts["not let in"] += 1
            return
        self.open.append(sock)
        said = self._what_is_said() if proven else self._what_is_said_first(address)
        self.counts["after the handshake" if proven else "before the handshake"] += 1
        with contextlib.suppress(OSError):  # it has hung up
            sock.settimeout(_PATIENCE_S)
            sock.sendall(tls.encrypt(said) if tls is not None else said)
            if self.source.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)
        while len(self.open) > _OPEN:
            self._leave(self.open.popleft())

    def _dial(self, address: Address) -> tuple[socket.socket, TlsEnd | None]:
        role, memory = self.source.choice(("worker", "worker", "operator")), self.memory[0] if self.memory else -1
        line = dial(address, self.target.credentials, role, _PATIENCE_S, memory)
        return line.sock, line.tls

    def _what_is_said_first(self, address: Address) -> bytes:
        """Rubbish, half a greeting, or a whole one and then rubbish."""
        source, hello = self.source, greeting(address.tls)
        rubbish = source.randbytes(source.choice((0, 1, 15, 124, 300, 5000)))
        whole = bytes(mutated_bytes(source, [hello + source.randbytes(124)]))
        return source.choice(
            (rubbish, hello[: source.randrange(16)], hello + rubbish, whole, b"GET / HTTP/1.1\r\n\r\n")
        )

    def _what_is_said(self) -> bytes:
        """Frames that were changed, or are not whole, or claim to be longer than any may be; or whole ones that say
        something that makes no sense."""
        source, kind = self.source, self.source.randrange(6)
        message, body = source.choice(self.known)
        if kind == 0:
            return source.randbytes(source.choice((1, 11, 12, 13, 4000)))
        if kind == 1:
            whole = source.choice(self.plain)
            return whole[: source.randrange(1, len(whole))]
        if kind == 2:
            sizes = (0, 10, 1 << 16, (4 << 20) + 1, 1 << 31, (1 << 32) - 1)
            return HEADER.pack(source.choice(list(Kind)), source.choice(sizes), source.choice(sizes)) + bytes(200)
        if kind == 3:
            return mutated_bytes(source, self.plain)
        pack = lying_bytes if body and source.random() < 0.3 else wire_bytes
        return b"".join(pack(mutated_message(source, message), body) for _ in range(3))

    def _leave(self, sock: socket.socket) -> None:
        """Most were hung up upon: what was said to them is read, and then they go."""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            self.counts["dropped"] += _was_hung_up_on(sock)
        sock.close()

    def close(self) -> None:
        while self.open:
            self._leave(self.open.popleft())
        if self.memory is not None:
            os.close(self.memory[0])


def _was_hung_up_on(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def connect_to(address: Address) -> socket.socket:
    if address.path:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_PATIENCE_S)
        sock.connect(address.path)
        return sock
    return socket.create_connection((address.host, address.port), _PATIENCE_S)


def bear_connections(target: Target, count: int, seed: int) -> str:
    """So many of them, beside a client that means well; what there is to say about it."""
    began_s, pushes, crowd = time.monotonic(), 1, Crowd(target, seed)
    with target.connect() as client:
        client.init("good", torch.zeros(1024), update=gradtide.update("add"))
        client.push("good", torch.ones(1024), wait=True)
        target.note_memory()
        for number in range(count):
            crowd.come()
            if number % _A_PUSH == 0:
                client.push("good", torch.ones(1024), wait=True)
                pushes += 1
        crowd.close()
        assert client.pull("good").tolist() == [pushes] * 1024
    with target.connect() as late:
        late.push("good", torch.ones(1024), wait=True)
        assert late.pull("good").tolist() == [pushes + 1] * 1024
    grown = target.grown_bytes()
    assert max(grown.values()) <= MOST_BYTES
    assert crowd.counts["not let in"] <= count / 100
    assert crowd.counts["before the handshake"] > count / 3
    assert crowd.counts["after the handshake"] > count / 3
    megabytes = {name: f"{size / 2**20:.1f} MB" for name, size in grown.items()}
    return f"{target.way}: {count} in {time.monotonic() - began_s:.1f} s, {dict(crowd.counts)}, grown by {megabytes}"


def bear_every_way(keeper: tuple[Forks, Path], folder: Path, count: int) -> None:
    forks, said = keeper
    for seed, way in enumerate(WAYS):
        with Target(forks, folder / way.replace(" ", "-"), way) as target:
            print(bear_connections(target, count // len(WAYS), seed))
    assert b"Traceback" not in said.read_bytes()


def test_a_thousand_hostile_connections_of_every_kind_do_no_harm(keeper, tmp_path):
    bear_every_way(keeper, tmp_path, 1000)


@pytest.mark.slow
def test_twenty_thousand_hostile_connections_do_no_harm(keeper, tmp_path):
    bear_every_way(keeper, tmp_path, 20_000)
