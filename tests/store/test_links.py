"""A client's links: of a server that was started again, the last start counts, however slow the one before is."""

import os
import threading
from pathlib import Path

import pytest

import gradtide
from gradtide.errors import PeerLost
from gradtide.store.client.links import Links, ServerLink
from gradtide.store.server.uplink import Uplink
from gradtide.store.wire.messages import ServerEntry
from gradtide.transport.authenticate import listen, parse_address
from gradtide.transport.handshake import Handshake
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service

LATE_S = 20.0


def welcome(listener):
    peer, _ = listener.accept()
    peer.settimeout(LATE_S)
    handshake = Handshake(Credentials(), "server")
    while not handshake.done:
        if answer := handshake.feed(peer.recv(4096)):
            peer.sendall(answer)
    return peer


def test_a_server_that_was_started_again_is_dialled_while_an_attempt_to_reach_its_predecessor_hangs(tmp_path: Path):
    tmp_path.chmod(0o700)
    entries = [ServerEntry("s", f"unix:{tmp_path}/{incarnation}", incarnation) for incarnation in (1, 2)]
    before, after = (listen(parse_address(entry.address), Credentials()) for entry in entries)
    lock, opened = threading.RLock(), threading.Semaphore(0)
    attached: list[ServerLink] = []
    links = Links(Credentials(), LATE_S, lock, attached.append, lambda name: opened.release())
    with before, after:
        for entry in entries:
            with lock:
                assert links.to(entry) is None
        with welcome(after):
            assert opened.acquire(timeout=LATE_S)
            with lock:
                assert links.to(entries[1]) is attached[0]
            with welcome(before) as late:
                assert late.recv(4096) == b"", "nobody wants it any more"
            with lock:
                assert links.all() == attached
                links.close()
    assert len(attached) == 1
    assert not opened.acquire(blocking=False)


def test_a_connect_that_finds_nobody_leaves_nothing_open(tmp_path: Path):
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(PeerLost, match="no gradtide server"):
        gradtide.connect(f"unix:{tmp_path}/nobody")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_server_that_finds_no_coordinator_says_so_once(tmp_path, monkeypatch, caplog):
    tmp_path.chmod(0o700)
    coordinator, service = parse_address(f"unix:{tmp_path}/coordinator"), Service.__new__(Service)
    Uplink(coordinator, Credentials()).start(service, print)
    assert caplog.messages == [], "it may come in a moment"
    monkeypatch.setattr("gradtide.store.server.uplink._SAY_S", 0.0)
    uplink = Uplink(coordinator, Credentials())
    for _ in range(2):
        uplink.start(service, print)
    (line,) = caplog.messages
    assert line.startswith(f"it still looks for the coordinator: no gradtide server at {coordinator} (")
