"""The journal in etcd, and coordinators that stand by."""

import threading
import time

import pytest
import torch
from etcd_here import EtcdHere, needs_etcd

import gradtide
from gradtide.errors import ConfigError, OutputError, PeerTimeout
from gradtide.store.coordinator import coordinator as coordinator_module
from gradtide.store.coordinator.election.etcd_place import parse_place
from gradtide.store.coordinator.election.etcd_register import EtcdRegister
from gradtide.store.coordinator.election.register import (
    Campaign,
    Deposed,
    Elected,
    Kept,
    Renew,
    Sighting,
    Unreachable,
    Write,
    Written,
)
from gradtide.store.coordinator.journal import pack
from gradtide.store.coordinator.membership import Membership
from gradtide.store.local.roles import Role, make_process
from gradtide.store.local.status import inspect
from gradtide.store.rules.updates import update
from gradtide.transport.keys import Credentials, Key


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with EtcdHere(tmp_path_factory.mktemp("etcd")) as started:
        yield started


def journal() -> bytes:
    record = Membership().take_unwritten()
    assert record is not None
    return pack(record)


def campaign(register: EtcdRegister, token: str, instead_of: Sighting | None = None) -> Elected | Sighting:
    answer = register.ask(Campaign(f"tcp:{token}:1", token, instead_of))
    assert isinstance(answer, Elected | Sighting)
    return answer


@needs_etcd
def test_one_leads_and_what_an_old_leader_writes_changes_nothing(etcd):
    one, other = (EtcdRegister(etcd.place("fence"), ("mark",)) for _ in range(2))
    first = campaign(one, "a")
    assert isinstance(first, Elected)
    assert first.content is None
    seen = campaign(other, "b")
    assert isinstance(seen, Sighting)
    assert (seen.leader, seen.token) == ("tcp:a:1", "a")
    written = one.ask(Write(first.seat, first.revision, journal()))
    assert isinstance(written, Written)
    assert one.ask(Renew(first.seat)) == Kept()
    again = campaign(other, "b", seen)
    assert isinstance(again, Sighting), "it has proven itself since"
    second = campaign(other, "c", again)
    assert isinstance(second, Elected)
    assert (second.clear, second.content, second.seat.term) == (True, journal(), first.seat.term + 1)
    assert one.ask(Renew(first.seat)) == Deposed()
    assert one.ask(Write(first.seat, written.revision, b"late")) == Deposed()
    third = other.ask(Write(second.seat, first.revision, journal()))
    assert isinstance(third, Written), "an answer was lost: nobody else can have written"
    other.resign(second.seat)
    last = campaign(one, "d")
    assert isinstance(last, Elected)
    assert last.clear


@needs_etcd
def test_a_journal_of_another_job_is_refused_in_one_line(etcd):
    mine, other = (EtcdRegister(etcd.place("theirs"), (mark,)) for mark in ("mine", "other"))
    first = campaign(mine, "a")
    assert isinstance(first, Elected)
    mine.ask(Write(first.seat, first.revision, journal()))
    with pytest.raises(ConfigError, match="is another job's: it was written with another secret"):
        campaign(other, "b")
    role = Role(role="coordinator", name="c", address="tcp:127.0.0.1:0", journal=etcd.journal("theirs"))
    refused = make_process(role, Credentials((Key(b"k" * 32),)))
    with pytest.raises(ConfigError, match="another job's"):
        refused.run()


def test_etcd_that_nobody_answers_for_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator_module, "_REACH_S", 0.0)
    tmp_path.chmod(0o700)
    role = Role(role="coordinator", name="c", address=f"unix:{tmp_path}/c", journal="etcd://127.0.0.1:1,127.0.0.1:2/j")
    with pytest.raises(
        OutputError, match=r"no member of etcd answers at etcd://127\.0\.0\.1:1,127\.0\.0\.1:2/j; start etcd"
    ):
        make_process(role, Credentials()).run()


@needs_etcd
def test_a_quorum_that_is_lost_is_named_in_one_line(tmp_path):
    with EtcdHere(tmp_path / "etcd", 3) as etcd:
        register = EtcdRegister(etcd.place())
        assert isinstance(campaign(register, "a"), Elected)
        etcd.kill(0)
        etcd.kill(1)
        answer = register.ask(Campaign("tcp:a:1", "b"))
        assert isinstance(answer, Unreachable)
        assert "has lost its quorum: 1 of 3 members answer; start the others" in answer.why
        assert "\n" not in answer.why


@needs_etcd
def test_etcd_over_tls_knows_its_clients_by_their_certificates(tmp_path):
    with EtcdHere(tmp_path / "etcd", tls=True) as etcd:
        assert isinstance(campaign(EtcdRegister(etcd.place()), "a"), Elected)
        stranger = EtcdRegister(parse_place(etcd.journal(), str(etcd.folder / "ca.pem")))
        assert isinstance(stranger.ask(Campaign("tcp:b:1", "b")), Unreachable)


@pytest.mark.parametrize(
    ("journal", "files", "wrong"),
    [
        ("etcd://h1:2379", (), "names no job"),
        ("etcd://h1:2379/a/b", (), "names no job"),
        ("etcd://h1:x/job", (), "'h1:x' is no member of etcd"),
        ("etcd://h1,,h2/job", (), "is no member of etcd"),
        ("etcd://h1/job", ("ca",), "is not encrypted"),
        ("etcds://h1/job", ("", "cert"), "go together"),
        ("etcds://h1/job", ("/nowhere/ca",), "can't be read"),
    ],
)
def test_a_wrong_journal_is_refused(journal, files, wrong):
    with pytest.raises(ConfigError, match=wrong):
        parse_place(journal, *files)


def test_a_port_and_brackets_may_be_left_out_or_given():
    assert parse_place("etcd://h1:1, h2:2 ,h3/j") == parse_place("etcd://h1:1,h2:2,h3:2379/j"), "blanks are no names"
    assert str(parse_place("etcd://h1,[::1]:99,10.0.0.1:7/j")) == "etcd://h1:2379,[::1]:99,10.0.0.1:7/j"


class Running:
    """A process of the store in a thread."""

    def __init__(self, role: Role) -> None:
        self.process = make_process(role, Credentials(name=role.name))
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.process.stop()
        self.thread.join(30)


@needs_etcd
def test_a_coordinator_that_goes_is_followed_by_one_that_stood_by(etcd, tmp_path):
    tmp_path.chmod(0o700)
    addresses = [f"unix:{tmp_path}/c{i}" for i in range(2)]
    store_address = ",".join(addresses)
    running = {
        a: Running(Role(role="coordinator", name="coordinator", address=a, journal=etcd.journal("two"), lease_s=1.0))
        for a in addresses
    }
    servers = [
        Running(
            Role(role="server", name=f"s{i}", address=f"unix:{tmp_path}/s{i}", coordinator=store_address, expected=2,
                 replicas=1)
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        with gradtide.connect(store_address) as store:
            store.init({"w": torch.zeros(3).long()}, update=update("add"))
            store.push("w", torch.ones(3).long(), wait=True)
            before = inspect(store_address)
            leader = next(a for a in addresses if running[a].process._membership is not None)
            running[leader].stop()
            store.push("w", torch.ones(3).long(), wait=True)
            deadline_s = time.monotonic() + 30
            while (after := _inspected(store_address)) is None or after.term == before.term:
                assert time.monotonic() < deadline_s
            assert after.term > before.term
            assert after.table is not None
            assert {peer.name for peer in after.peers if peer.role == "server"} == {"s0", "s1"}
            store.push("w", torch.ones(3).long(), wait=True)
            assert store.pull("w").tolist() == [3, 3, 3]
            with gradtide.connect(",".join(reversed(addresses))) as late:
                assert late.pull("w").tolist() == [3, 3, 3]
    finally:
        for one in (*servers, *running.values()):
            one.stop()


def _inspected(address: str):
    try:
        return inspect(address, timeout_s=1.0)
    except PeerTimeout:
        return None
