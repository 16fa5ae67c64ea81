"""A server among many clients, idle sockets and rubbish."""

import os
import random
import socket
import time

import pytest
import torch

import gradtide
from gradtide.errors import CommunicationError
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import (
    Beat,
    Init,
    Keys,
    KeySpec,
    Part,
    Piece,
    Pull,
    Push,
    ServerEntry,
    Table,
    UpdateRule,
    encode,
    layout_name,
)
from gradtide.store.wire.placement import deal, shard_of
from gradtide.transport.authenticate import HANDSHAKE_S, dial, parse_address
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.frames import HEADER, PLACE, Kind, cut, shared, whole
from gradtide.transport.keys import Credentials
from gradtide.transport.shared_ring import make_ring, open_ring
from store_processes import pid_of

PARTS = (Part(5, (Piece("w", 0, 0, 4, 16),)),)


@pytest.fixture
def one(forks):
    with gradtide.local_servers(1, forks=forks) as started:
        yield started


def server_path(started):
    return f"{started.folder}/server-0"


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_three_hundred_clients_at_once(one):
    """All connected and all with a request under way at the same time, driven from one thread."""
    with gradtide.connect(one.address) as store:
        store.init("w", torch.zeros(4, dtype=torch.int64), update=gradtide.update("add"))
        info = store.info("w")
        epoch = store.table.epoch
        parts = (Part(shard_of("w", 0), (Piece("w", 0, 0, 4, 32),)),)
        body = memoryview(torch.ones(4, dtype=torch.int64).numpy()).cast("B")
        clients = []
        for i in range(300):
            line = dial(parse_address(f"unix:{server_path(one)}"), Credentials(), "worker")
            connection = open_connection(line, f"client {i}")
            answers = []
            connection.on_messages(lambda data, answers=answers: answers.append(bytes(data)), lambda: None)
            clients.append((connection, answers))
        for sequence in range(1, 6):
            for i, (connection, _) in enumerate(clients):
                push = Push(epoch, f"c{i}", 1, sequence, layout_name(parts), parts)
                connection.send(encode(push), [body], 32)
            for connection, answers in clients:
                while len(answers) < sequence:
                    connection.wait(20, "push")
                    connection.receive()
        assert info.size_bytes == 32
        assert store.pull("w").tolist() == [1500] * 4
        for connection, _ in clients:
            connection.close()


def open_idle(path):
    idle = []
    for i in range(1000):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        if i % 2:
            sock.sendall(b"grad")  # half a hello is as idle as none
        idle.append(sock)
    return idle


def test_idle_sockets_are_dropped_at_the_handshake_deadline(one):
    started_s = time.monotonic()
    for sock in open_idle(server_path(one)):
        sock.settimeout(20)
        assert sock.recv(200) == b""
        sock.close()
    assert HANDSHAKE_S - 0.5 < time.monotonic() - started_s < HANDSHAKE_S + 10


def seeds_of_frames():
    """Messages of every kind, well formed, for mutation."""
    body = memoryview(bytes(16))
    spec = KeySpec("w", (4,), "float32", UpdateRule("add"))
    name = layout_name(PARTS)
    messages = [
        (Init(1, "m", 1, 1, spec, PARTS), [body]),
        (Push(1, "m", 1, 2, name, PARTS), [body]),
        (Push(1, "m", 1, 3, name, pull=True), [body]),
        (Pull(1, "m", 1, 4, name, PARTS), []),
        (Keys(1, "m", 1, 5), []),
        (Beat("m", 1), []),
    ]
    lying = [shared(whole(encode(m), 16), PLACE.pack(4096, 8192), 16) for m, b in messages if b]
    return lying + [b"".join(bytes(part) for _, frame in cut(encode(m), b) for part in frame) for m, b in messages]


def mutated(source, seeds):
    """One to three frames, with bits flipped, bytes lost, repeated or replaced."""
    data = bytearray(b"".join(source.choice(seeds) for _ in range(source.randrange(1, 4))))
    for _ in range(source.randrange(1, 6)):
        at = source.randrange(len(data))
        kind = source.randrange(5)
        if kind == 0:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[at : at + source.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            data += data[at : at + 40]
        if not data:
            data += b"\0"
    return bytes(data)


class Everything:
    """A server without its sockets: what is received goes the same way as in a real one."""

    def __init__(self, folder):
        folder.chmod(0o700)
        address = parse_address(f"unix:{folder}/s")
        self.host = ShardSet("s", 1, str(address), TorchArithmetic())
        self.host.hear(Table(1, 1, (ServerEntry("s", str(address), 1),), deal(1)), 0.0)
        self.server = Server(self.host, address, Uplink(address, Credentials()))
        descriptor, self.other_end = make_ring()
        self.ring = open_ring(descriptor)

    def receive(self, data):
        """As one connection; raises what drops a connection."""
        here, there = socket.socketpair()
        connection = Connection(here, "mutant")
        connection.use_ring(self.ring)
        try:
            self.server._greet(connection)
            connection.feed(data[:100_000])
        finally:
            here.close()
            there.close()


def run_mutants(folder, count, seed):
    server, seeds, source = Everything(folder), seeds_of_frames(), random.Random(seed)
    server.receive(seeds[-6])
    dropped = 0
    for _ in range(count):
        try:
            server.receive(mutated(source, seeds))
        except CommunicationError as error:
            dropped += "\n" not in str(error)
    assert dropped > count // 4
    assert server.host.shards[5].blocks["w", 0].elements == 4
    assert sum(len(shard.blocks) for shard in server.host.shards.values()) < 2000
    server.server.close()


def test_thousands_of_mutated_frames_do_no_harm(caplog, tmp_path):
    """More by what they say: test_hostile.py."""
    caplog.set_level("CRITICAL")
    run_mutants(tmp_path, 4_000, seed=1)


@pytest.mark.slow
def test_a_million_mutated_frames_do_no_harm(caplog, tmp_path):
    caplog.set_level("CRITICAL")
    run_mutants(tmp_path, 1_000_000, seed=2)


def test_a_live_server_serves_on_among_mutants_and_its_memory_is_bounded(one):
    source, seeds = random.Random(3), seeds_of_frames()
    with gradtide.connect(one.address) as store:
        store.init("steady", torch.zeros(1024), update=gradtide.update("add"))
        pid = pid_of(one, "server-0")
        before = resident_bytes(pid)
        for i in range(1000):
            sock = dial(parse_address(f"unix:{server_path(one)}"), Credentials(), "worker").sock
            sock.sendall(mutated(source, seeds))
            sock.shutdown(socket.SHUT_WR)
            said = b""
            while piece := sock.recv(65536):
                said += piece
            assert b"Traceback" not in said
            sock.close()
            if i % 100 == 0:
                store.push_pull("steady", torch.ones(1024))
        assert pid_of(one, "server-0") == pid
        assert torch.equal(store.pull("steady"), torch.full((1024,), 10.0))
        assert resident_bytes(pid) < before + (64 << 20)


def test_a_frame_that_claims_gigabytes_is_refused_before_anything_is_allocated(one):
    pid = pid_of(one, "server-0")
    before = resident_bytes(pid)
    for meta, body in ((0xFFFFFFFF, 0), (10, 0xFFFFFFFF), (10, (4 << 20) + 1), (64 << 10, 0)):
        sock = dial(parse_address(f"unix:{server_path(one)}"), Credentials(), "worker").sock
        sock.sendall(HEADER.pack(Kind.MESSAGE, meta, body))
        sock.settimeout(10)
        while sock.recv(4096):  # credit first, then the end
            pass
        sock.close()
    assert resident_bytes(pid) < before + (8 << 20)
