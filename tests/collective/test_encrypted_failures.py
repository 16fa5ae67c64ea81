"""Encrypted links when a rank is killed or stopped, a wire is cut or somebody in between changes what passes: survivors
raise what they raise in clear, as soon, and no result is ever wrong. One rank on each of two network namespaces."""

import os
import signal
import socket
import threading
import time

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from clock import at_most
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError
from gradtide.testing.hosts import cut_wire
from gradtide.transport import lifelines
from gradtide.transport.keys import make_secret_file

SIZE = 2
LARGE = 8_000_000  # floats
_kept = {}


@pytest.fixture(scope="module")
def hosts():
    with namespaces(SIZE, "800mbit") as names:
        yield names


@pytest.fixture
def apart(hosts, tmp_path):
    make_secret_file(tmp_path / "job.secret")
    started = Ranks(SIZE)
    started.run(move, SIZE, hosts)
    started.run(encrypt, SIZE, str(tmp_path / "job.secret"))
    yield started
    started.close()


def encrypt(rank, size, path):
    os.environ |= {"GRADTIDE_SECRET_FILE": path, "GRADTIDE_ENCRYPT": "1"}


def join(rank, size):
    _kept["group"] = Group.from_environment(timeout_s=30)
    _kept["group"].all_reduce(torch.ones(3))
    return os.getpid()


CALLS = {
    "all_reduce": lambda group, tensor, s: group.all_reduce(tensor, timeout_s=s).eq(group.size).all(),
    "ring": lambda group, tensor, s: group.all_reduce(tensor, strategy="ring", timeout_s=s).eq(group.size).all(),
    "message": lambda group, tensor, s: _message(group, tensor, s),
}


def _message(group, tensor, timeout_s):
    """Rank 1 sends, rank 0 receives."""
    if group.rank:
        group.send(tensor, 0, timeout_s=timeout_s)
        return torch.tensor(True)
    return group.recv(torch.zeros_like(tensor), 1, timeout_s=timeout_s).eq(1).all()


def again_and_again(rank, size, operation, timeout_s, at_most_s=60.0):
    """Until it fails: how, and when. A wrong result is told."""
    group, begin = _kept["group"], time.monotonic()
    while time.monotonic() < begin + at_most_s:
        try:
            if not CALLS[operation](group, torch.ones(LARGE), timeout_s):
                return "wrong", "", time.monotonic()
        except CommunicationError as error:
            return type(error).__name__, str(error), time.monotonic()
    return "nothing", "", time.monotonic()


@pytest.mark.parametrize("operation", list(CALLS))
@pytest.mark.parametrize("what", ["killed", "stopped"])
def test_a_rank_that_dies_or_stops_is_named(apart, operation, what):
    pids = apart.run(join, SIZE)
    apart.start(again_and_again, SIZE, operation, 1.0)
    assert not apart._pipes[0].poll(1.0)  # in the middle
    happened = time.monotonic()
    os.kill(pids[1], signal.SIGKILL if what == "killed" else signal.SIGSTOP)
    kind, text, end = apart.answer(0)
    assert (kind, "rank 1" in text) == ("PeerLost" if what == "killed" else "PeerTimeout", True), text
    assert end - happened < at_most(1.5 if what == "killed" else 4)


@pytest.mark.parametrize("operation", ["all_reduce", pytest.param("message", marks=pytest.mark.slow)])
def test_a_wire_that_is_cut_is_noticed_in_seconds(apart, hosts, operation):
    apart.run(join, SIZE)
    apart.start(again_and_again, SIZE, operation, 1800.0)
    assert not apart._pipes[0].poll(0.5)
    with cut_wire(hosts):
        cut = time.monotonic()
        for rank in range(SIZE):
            kind, text, end = apart.answer(rank)
            assert (kind, f"rank {1 - rank}" in text) == ("PeerLost", True), text
            assert end - cut < at_most(8)


class Flipping:
    """Passes bytes on, both ways; after so many bytes of one connection it changes one bit, in one direction."""

    def __init__(self, target, after):
        self._target, self._after, self.flipped = target, after, 0
        self._listener = socket.create_server((target[0], 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(self._target)
            for source, target, changes in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass_on, args=(source, target, changes), daemon=True).start()

    def _pass_on(self, source, target, changes):
        passed = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if changes and passed <= self._after < passed + len(data):
                    data[self._after - passed] ^= 0x10
                    self.flipped += 1
                passed += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            target.close()


def join_through(rank, size, after):
    """Rank 0 listens behind somebody who changes a bit of what rank 1 sends it, on links for tensors."""
    real = lifelines.socket.create_server
    if rank == 0:
        between = []

        class Behind(socket.socket):
            def getsockname(self):
                host, port = super().getsockname()
                between.append(Flipping((host, port), after))
                return host, between[-1].port

        def create_server(address, **options):
            made = real(address, **options)
            return Behind(made.family, made.type, fileno=made.detach())

        lifelines.socket = type("patched", (), {**vars(socket), "create_server": staticmethod(create_server)})
        _kept["between"] = between
    try:
        _kept["group"] = Group.from_environment(timeout_s=5)
    except CommunicationError as error:
        return type(error).__name__, str(error)
    return "joined", ""


def flipped(rank, size):
    return sum(proxy.flipped for proxy in _kept.get("between", ()))


@pytest.mark.parametrize("operation", list(CALLS))
@pytest.mark.parametrize("after", [40_000, 1_000_003])
def test_a_bit_that_changes_on_the_way_never_changes_a_result(apart, after, operation):
    """After the handshakes, in the middle of a tensor."""
    assert [kind for kind, _ in apart.run(join_through, SIZE, after)] == ["joined"] * 2
    begin = time.monotonic()
    found = apart.run(again_and_again, SIZE, operation, 10.0)
    assert apart.run(flipped, SIZE)[0]
    for rank, (kind, text, end) in enumerate(found):
        assert (kind, f"rank {1 - rank}" in text or "ranks 0 and 1" in text) == ("PeerLost", True), text
        assert rank or "the link between ranks 0 and 1 was given up: what came was changed on the way" in text
        assert end - begin < at_most(8)
