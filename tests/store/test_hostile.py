"""A server and a coordinator among peers of every role who say anything: nothing ends but the connection."""

import random
import resource
import socket

import pytest
from hostile import PARTS, every_message, lying_bytes, mutated_bytes, mutated_message, well_formed, wire_bytes

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.coordinator.coordinator import Coordinator
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import (
    BeginCut,
    Configure,
    Join,
    Pull,
    ServerEntry,
    Table,
    Version,
    Welcome,
    decode_from,
    encode,
    find_request,
    layout_name,
)
from gradtide.transport.authenticate import parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.handshake import Identity
from gradtide.transport.keys import Credentials
from gradtide.transport.shared_ring import make_ring, open_ring

ROLES = ("worker", "operator", "server", "")
_A_CONNECTION = 16  # messages, if it lasts


class Bearing:
    """A process of the store without its loop: what is received goes the same way as in a real one."""

    def __init__(self, process):
        self.process = process
        descriptor, self.other_end = make_ring()
        self.ring = open_ring(descriptor)
        self.said = self.dropped = 0

    def receive(self, identity, frames):
        """As one connection. Only what drops a connection may be raised."""
        here, there = socket.socketpair()
        connection = Connection(here, "a client", identity=identity)
        connection.use_ring(self.ring)
        lost = self.process._greet(connection)
        error = CommunicationError("it has gone")
        try:
            for frame in frames:
                self.said += 1
                connection.feed(frame)
        except CommunicationError as dropped:
            self.dropped, error = self.dropped + 1, dropped
        finally:
            here.close()
            there.close()
        lost(error)


def a_server(folder):
    address = parse_address(f"unix:{folder}/s")
    shard_set = ShardSet("s", 1, str(address), TorchArithmetic())
    others = (ServerEntry("s", str(address), 1), ServerEntry("t", f"unix:{folder}/t", 2))
    backups = tuple(() for _ in range(1024))
    shard_set.hear(Welcome("s", 1, 1e9), 0.0)
    owners = tuple(number % 2 ^ 1 for number in range(1024))  # 5 is its own, 6 is of t
    shard_set.hear(Table(1, 1, others, owners, 0, backups, tuple((0,) if owner else () for owner in owners)), 0.0)
    return Server(shard_set, address, Uplink(address, Credentials()), roots=[str(folder)]), shard_set


def a_coordinator(folder):
    coordinator = Coordinator(parse_address(f"unix:{folder}/c"))
    for name in ("s", "t"):
        coordinator._membership.hear(Join("server", name, 0, f"unix:{folder}/{name}", expected=2, replicas=1), 0.0)
    return coordinator


def run_hostile(bearing, folder, count, seed):
    """So many messages, spoilt, by every role; none of them raises anything but what drops its connection."""
    source, known = random.Random(seed), well_formed(folder)
    assert {type(message) for message, _ in known} == set(every_message())
    plain = [wire_bytes(encode(message), body) for message, body in known]
    while bearing.said < count:
        identity = Identity(source.choice(ROLES), source.choice(("", "", "s", "t", "m")))
        bearing.receive(identity, spoilt(source, known, plain))
    assert bearing.dropped > 0
    most_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{bearing.said} messages, {bearing.dropped} connections dropped, {most_bytes / 2**20:.0f} MB at most")


def spoilt(source, known, plain):
    """What one connection says, made when it is said: most are dropped soon."""
    for _ in range(_A_CONNECTION):
        message, body = source.choice(known)
        chance = source.random()
        pack = lying_bytes if body and chance < 0.1 else wire_bytes
        data = encode(message) if chance > 0.8 else mutated_message(source, message)
        yield mutated_bytes(source, plain) if 0.7 < chance < 0.8 else pack(data, body)


@pytest.fixture
def folder(tmp_path, caplog):
    caplog.set_level("CRITICAL")
    tmp_path.chmod(0o700)
    return tmp_path


def bear_as_server(folder, count, seed):
    server, shard_set = a_server(folder)
    try:
        run_hostile(Bearing(server), folder, count, seed)
    finally:
        server.close()
    assert sum(len(shard.blocks) for shard in shard_set.shards.values()) < 2000


def bear_as_coordinator(folder, count, seed):
    coordinator = a_coordinator(folder)
    try:
        run_hostile(Bearing(coordinator), folder, count, seed)
    finally:
        coordinator._service.close()


def test_a_server_bears_every_message_spoilt_from_every_role(folder):
    bear_as_server(folder, 15_000, 1)


def test_a_coordinator_bears_every_message_spoilt_from_every_role(folder):
    bear_as_coordinator(folder, 15_000, 2)


@pytest.mark.slow
def test_a_million_spoilt_messages_do_no_harm(folder):
    bear_as_server(folder, 500_000, 3)
    bear_as_coordinator(folder, 500_000, 4)


@pytest.mark.parametrize("start", [bytes.fromhex("9233"), bytes.fromhex("960201a16d0101")])  # of Inspect, of Push
def test_lists_in_lists_in_lists_are_no_message(start):
    data = memoryview(start + bytes.fromhex("91") * 60_000)
    assert find_request(data) is None
    with pytest.raises(FrameError, match="no message of the store"):
        decode_from("it", data)


@pytest.mark.parametrize(
    "message",
    [
        Configure(1, "m", 1, 6, "w", {"lr": 0.5}, (5, 7), (1,), 1),
        Pull(1, "m", 1, 4, layout_name(PARTS), PARTS, (1, 2)),
        Pull(1, "m", 1, 4, layout_name(PARTS), PARTS, (), 0, 0, (Version(), Version())),
    ],
    ids=["a change", "a pull after", "a pull of versions"],
)
def test_a_request_that_does_not_say_as_much_of_each_part_is_dropped_without_a_trace(tmp_path, caplog, message):
    tmp_path.chmod(0o700)
    server, _ = a_server(tmp_path)
    try:
        bearing = Bearing(server)
        bearing.receive(Identity("worker", ""), [wire_bytes(encode(message), b"")])
        assert bearing.dropped == 1
    finally:
        server.close()
    assert "Traceback" not in caplog.text


def test_a_cut_to_what_can_be_no_folder_is_refused_by_name(folder):
    server, _ = a_server(folder)
    try:
        for name in ("\0", "s3://nowhere/at/all"):
            answers = server._cutter.handle(BeginCut(1, "m", 1, 1, "cut", name), 0.0)
            assert answers[0].message.reason == "cut"
    finally:
        server.close()
