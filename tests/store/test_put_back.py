"""Defects that a store once had, each put back on purpose: a check that holds without it fails with it.

Those that a simulated store can show are in tests/testing/test_hardship.py; docs/reliability.md has the whole list.
"""

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hostile import wire_bytes
from operated import Operated
from test_forked_clients import in_child
from test_hostile import Bearing, a_server

import gradtide
from gradtide.checkpoint.manifest import MANIFEST
from gradtide.checkpoint.shelf import Shelf
from gradtide.errors import DataError, GradtideError, OutputError
from gradtide.store.client import engine
from gradtide.store.client.checkpointing import _Collecting
from gradtide.store.client.operations import Done
from gradtide.store.client.session import Session
from gradtide.store.coordinator import assignment, journal
from gradtide.store.coordinator.admission import Admission
from gradtide.store.coordinator.journal import Journal, pack
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.tables import Tables
from gradtide.store.server import server as server_shell
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.filter import Filter
from gradtide.store.wire.credit import ANSWERS_KEPT
from gradtide.store.wire.messages import (
    Created,
    Join,
    KeySpec,
    Pushed,
    Replicate,
    ServerEntry,
    Settled,
    Slot,
    Table,
    UpdateRule,
    Version,
    Welcome,
    encode,
)
from gradtide.store.wire.placement import deal
from gradtide.transport.authenticate import listen, parse_address
from gradtide.transport.dialer import Heartbeat
from gradtide.transport.handshake import Handshake, Identity
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service

SPEC = KeySpec("w", (4,), "float32", UpdateRule("add"))


@dataclass(frozen=True)
class Defect:
    put_back: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[Path], None]  # holds, or raises AssertionError


# --- a rotation that fails deletes the new checkpoint ---


def discard_when_rotation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any, pending: Any) -> None:
        try:
            taken = self._commit(pending)
            if self._options.keep is not None:
                self._shelf._remove_all_but(self._options.keep)
        except BaseException as error:
            self._shelf.discard(self._folder)
            self._handle.fail(error)
        else:
            self._handle.finish(taken)

    monkeypatch.setattr(_Collecting, "_run", run)


def a_checkpoint_stays_when_the_one_before_cannot_be_removed(folder: Path) -> None:
    with Operated(folder) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address) as client:
            client.init("w", torch.zeros(4))
            first = client.checkpoint(folder / "kept")
            manifest = Path(first.address) / MANIFEST
            manifest.write_bytes(b"no longer legible")
            with contextlib.suppress(GradtideError):
                client.checkpoint(folder / "kept", keep=1)
    complete = [name for _, name in Shelf(folder / "kept").folders() if Shelf(folder / "kept").is_complete(name)]
    assert len(complete) == 2


# --- wanted replicas are forgotten ---


def want_no_more_copies_than_servers_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    deal_first = Tables._deal

    def forgetful(self: Tables, servers: list[Join]) -> Any:
        few = [msgspec.structs.replace(join, replicas=min(join.replicas, len(servers) - 1)) for join in servers]
        return deal_first(self, few)

    monkeypatch.setattr(Tables, "_deal", forgetful)


def a_server_that_comes_later_gets_the_copies_that_are_wanted(folder: Path) -> None:
    membership = Membership()
    for i in range(2):
        membership.hear(Join("server", f"s{i}", 1, f"s{i}", expected=1, replicas=1), 0.0)
    table = membership.table
    assert table is not None
    assert (table.replicas, set(map(len, table.joining))) == (1, {1})


# --- a forked child's pushes take the parent's sequences ---


def let_a_child_use_its_parents_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "watch_forks", lambda _: None)


def what_a_parent_was_acknowledged_counts_whatever_its_child_does(folder: Path) -> None:
    with Operated(folder) as store:
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address) as client:
            client.init("w", torch.zeros(4), update=gradtide.update("add"))
            client.push("w", torch.ones(4), wait=True)
            said = in_child(lambda: client.push("w", torch.full((4,), 100.0)).ended(2))
            client.push("w", torch.ones(4), wait=True)
            value = float(client.pull("w")[0])
    assert (said.startswith("Closed"), value) == (True, 2.0)


# --- a short journal write is renamed over the good one ---


def write_once_and_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: Journal, record: Record) -> None:
        fresh = f"{self.path}.new"
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        journal.os.write(number, pack(record))
        os.close(number)
        os.replace(fresh, self.path)

    monkeypatch.setattr(Journal, "write", hasty)


def a_disk_that_takes_a_few_bytes_at_a_time_gets_the_whole_journal_or_keeps_the_old(folder: Path) -> None:
    class SlowDisk:
        """The os module, but for what a disk takes at once, and in all."""

        def __init__(self, room: int) -> None:
            self.room = room

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, number: int, data: Any) -> int:
            if not self.room:
                raise OSError(28, "No space left on device")
            written = os.write(number, bytes(data[: min(16, self.room)]))
            self.room -= written
            return written

    with Journal(folder / "journal") as kept, pytest.MonkeyPatch.context() as patched:
        first, second = Record(1, 1, None, None), Record(2, 2, None, None)
        kept.write(first)
        for room, expected in ((40, first), (1 << 20, second)):
            patched.setattr(journal, "os", SlowDisk(room))
            with contextlib.suppress(OutputError):
                kept.write(second)
            try:
                found = kept.read()
            except DataError:
                found = None
            assert found == expected


# --- a second server with the same name displaces the living one ---


def believe_whoever_has_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "why_not", lambda *_, **__: "")


def a_second_server_of_a_name_is_refused(folder: Path) -> None:
    membership = Membership()
    membership.hear(Join("server", "s", 0, "here", expected=1, token=5), 0.0)
    before = membership.table
    told = membership.hear(Join("server", "s", 0, "there", expected=1, token=6), 0.1)
    welcomes = [tell.message for tell in told if isinstance(tell.message, Welcome)]
    assert [word.accepted for word in welcomes] == [False]
    assert membership.table == before


# --- a lease without an answer leads to no new connection ---


def never_give_a_connection_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeat, "is_lost", lambda *_: False)


def greet(listener: socket.socket) -> socket.socket:
    peer, _ = listener.accept()
    peer.settimeout(20)
    handshake = Handshake(Credentials(), "coordinator")
    while not handshake.done:
        if answer := handshake.feed(peer.recv(4096)):
            peer.sendall(answer)
    return peer


def who_gets_no_answer_for_a_lease_dials_again(folder: Path) -> None:
    address = parse_address(f"unix:{folder}/c")
    uplink, lease_s, dialled = Uplink(address, Credentials()), 0.1, []
    own = listen(parse_address(f"unix:{folder}/s"), Credentials())
    service = Service(own, Credentials(), "server", lambda _: lambda error: None)
    with listen(address, Credentials()) as silent:
        over = threading.Event()

        def answer_no_more() -> None:
            """Whoever comes is greeted, and told nothing ever after."""
            with contextlib.suppress(OSError, GradtideError):
                while not over.is_set():
                    dialled.append(greet(silent))

        greeter = threading.Thread(target=answer_no_more, daemon=True)
        greeter.start()
        uplink.start(service, lambda _: None)
        deadline_s = time.monotonic() + 30 * lease_s
        while len(dialled) < 2 and time.monotonic() < deadline_s:
            uplink.poll(lease_s)
            service.run_once(lease_s / 8)
        over.set()
        silent.shutdown(socket.SHUT_RDWR)
        greeter.join(5)
        uplink.close()
        service.close()
    for connection in dialled:
        connection.close()
    assert len(dialled) >= 2


# --- a client may send a server's message ---


def let_everybody_say_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_shell, "check_rights", lambda *_, **__: None)


def what_a_client_says_in_a_servers_name_changes_nothing(folder: Path) -> None:
    server, shard_set = a_server(folder)
    steps = (Created(SPEC, 0, 4, 16, b"digest"),)
    word = Replicate(1, "t", 6, Version(), Version(1, 1), Version(1, 1), steps, (Slot("float32", 4),))
    try:
        bearing = Bearing(server)
        bearing.receive(Identity("worker", ""), [wire_bytes(encode(word), bytes(16))])
        assert (bearing.dropped, list(shard_set.replication.replicas)) == (1, [])
    finally:
        server.close()


# --- a request that can't be decoded makes a tight loop ---


def send_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_suspect_what_is_not_taken", lambda *_: [])


def a_request_at_which_a_server_hangs_up_is_given_up(folder: Path) -> None:
    session: Session[str] = Session("c", 1)
    session.hear(Table(1, 1, (ServerEntry("s0", "s0", 1),), deal(1)), 0.0)
    session.learn(SPEC)
    session.push(session.layout(("w",)), ["x"], now_s=0.0)
    told = [word for i in range(10) for word in session.lost("s0", 0.01 * i, hung_up=True)]
    assert any(isinstance(word, Done) and word.refused is not None for word in told)


def hang_up_at_what_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "_refuse_by_name", lambda *_: False)


def a_request_that_cannot_be_decoded_is_answered(folder: Path) -> None:
    server, _ = a_server(folder)
    try:
        bearing = Bearing(server)
        words = msgspec.msgpack.encode([1, 1, "old", 5, 1, {"a": [1, "x"]}, 3.5, b"?"])
        bearing.receive(Identity("worker", ""), [wire_bytes(words, b"some values")] * 3)
        assert (bearing.said, bearing.dropped) == (3, 0)
    finally:
        server.close()


# --- the window of answers forgets pushes of an open round after a failover ---


def forget_what_waits_below_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filter, "waiting_below", lambda *_: ())


def a_push_of_an_open_round_may_come_again_after_a_failover_however_much_was_answered_since(folder: Path) -> None:
    primary, replica = Filter(), Filter()
    primary.admit("c", 1, 1)  # its round is open
    for sequence in range(2, ANSWERS_KEPT + 10):
        answer = Pushed(sequence, 5, Version(1, sequence))
        primary.admit("c", 1, sequence)
        primary.settle("c", 1, answer)
        replica.replay(Settled("c", 1, sequence, answer, primary.waiting_below("c")))
    replica.take_over()
    assert replica.judge("c", 1, 1, 0) == "new"
    assert replica.judge("c", 1, 2, 0) == "forgotten"


# --- both copies on one machine ---


def take_every_server_for_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "host_of", lambda server: server.name)


def no_shard_has_both_copies_on_one_machine(folder: Path) -> None:
    membership = Membership()
    for i in range(4):
        membership.hear(Join("server", f"s{i}", 1, f"tcp:host{i // 2}:{i}", expected=4, replicas=1), 0.0)
    table = membership.table
    assert table is not None
    machine = [i // 2 for i in range(4)]
    assert all(
        machine[owner] != machine[i]
        for owner, backups in zip(table.owners, table.backups, strict=True)
        for i in backups
    )


DEFECTS = [
    Defect(discard_when_rotation_fails, a_checkpoint_stays_when_the_one_before_cannot_be_removed),
    Defect(want_no_more_copies_than_servers_have_come, a_server_that_comes_later_gets_the_copies_that_are_wanted),
    Defect(let_a_child_use_its_parents_store, what_a_parent_was_acknowledged_counts_whatever_its_child_does),
    Defect(write_once_and_rename, a_disk_that_takes_a_few_bytes_at_a_time_gets_the_whole_journal_or_keeps_the_old),
    Defect(believe_whoever_has_the_name, a_second_server_of_a_name_is_refused),
    Defect(never_give_a_connection_up, who_gets_no_answer_for_a_lease_dials_again),
    Defect(let_everybody_say_anything, what_a_client_says_in_a_servers_name_changes_nothing),
    Defect(send_for_ever, a_request_at_which_a_server_hangs_up_is_given_up),
    Defect(hang_up_at_what_cannot_be_decoded, a_request_that_cannot_be_decoded_is_answered),
    Defect(
        forget_what_waits_below_the_window,
        a_push_of_an_open_round_may_come_again_after_a_failover_however_much_was_answered_since,
    ),
    Defect(take_every_server_for_a_machine, no_shard_has_both_copies_on_one_machine),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a process with threads forks
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.check.__name__)
def test_it_holds_and_with_the_defect_put_back_it_does_not(
    defect: Defect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("without", "with"):
        (tmp_path / name).mkdir(mode=0o700)
    defect.check(tmp_path / "without")
    defect.put_back(monkeypatch)
    with pytest.raises(AssertionError):
        defect.check(tmp_path / "with")
