"""What an operator does to a store, mistakes included: nothing that was acknowledged is lost without a word."""

import contextlib
import logging
import shutil
import subprocess
import time

import pytest
import torch
from operated import Operated
from proxy import Proxy, Weather

import gradtide
from gradtide.errors import OutputError, RolledBack, StoreError
from gradtide.store.coordinator.journal import _MAGIC, Journal
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.local.status import ask_status, complaints
from gradtide.store.shard.shard_events import PushPart
from gradtide.store.wire.messages import Join, Part, Push
from store_processes import wait_until

KEYS = [f"k{i}" for i in range(8)]


def is_whole(store):
    table = ask_status(store.address).coordinator.table
    return table is not None and all(len(backups) == table.replicas for backups in table.backups)


def pushed(client):
    handle = client.push(KEYS, [torch.ones(3)] * len(KEYS))
    handle.wait()
    return handle.report


def push_until_told(client):
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        pushed(client)


def complaint(store):
    return " ".join(complaints(ask_status(store.address)))


def begun(store):
    client = gradtide.connect(store.address)
    client.init({key: torch.zeros(3) for key in KEYS}, update=gradtide.update("add"))
    return client


def test_copies_that_are_wanted_are_made_as_servers_come_and_until_then_everybody_is_told(tmp_path, caplog):
    with Operated(tmp_path) as store, caplog.at_level(logging.WARNING):
        store.coordinator()
        store.server("s0", replicas=1)
        with begun(store) as client:
            assert not pushed(client).replicated
            assert "2 copies need 2 servers, and 1 have come" in complaint(store)
            assert "1024 of 1024 shards lack a copy: 2 copies need 2 servers, and 1 have come" in caplog.text
            store.server("s1", replicas=1)
            wait_until(lambda: is_whole(store))
            wait_until(lambda: pushed(client).replicated)
            assert "all shards have their copies now" in caplog.text
            before = client.pull(KEYS)
            store.stop("s0")
            assert all(map(torch.equal, client.pull(KEYS), before))


def test_a_journal_that_is_not_the_last_one_is_found_out_by_the_first_beat(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0", expected=2, replicas=1)
        store.server("s1", expected=2, replicas=1)
        with begun(store) as client:
            pushed(client)
            shutil.copy(tmp_path / "journal", tmp_path / "backup")
            store.stop("s0")
            wait_until(lambda: any(len(b) < 1 for b in ask_status(store.address).coordinator.table.backups))
            pushed(client)
            pushed(client)
            store.stop("coordinator")
            store.coordinator("backup")
            error = store.wait_for("coordinator")
            assert isinstance(error, StoreError)
            assert "s1 is at term" in str(error)
            assert "or with --accept-loss" in str(error)
            store.coordinator("backup", accept_loss=True)
            with pytest.raises(RolledBack):
                push_until_told(client)


def test_a_coordinator_without_its_journal_goes_on_only_if_losses_are_accepted(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with begun(store) as client:
            pushed(client)
            taken = client.checkpoint(tmp_path / "kept")
        store.stop("coordinator")
        store.coordinator("another")
        assert "it is an old one, or none" in str(store.wait_for("coordinator"))
        store.coordinator("another", accept_loss=True, checkpoints=str(tmp_path / "kept"), after_loss="rewind")
        with gradtide.connect(store.address) as client:
            assert all(value.tolist() == [1, 1, 1] for value in client.pull(KEYS))
        assert taken.address in complaint(store)


@pytest.mark.quick
def test_a_client_of_an_earlier_store_ends_nobody() -> None:
    membership = Membership()
    membership.hear(Join("server", "s0", 1, "s0", expected=1), 0.0)
    (tell,) = membership.hear(Join("client", "c", 5, term=7, epoch=9), 0.0)
    assert "connect again" in tell.message.text


def test_a_second_server_of_a_name_ends_and_the_first_goes_on(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with begun(store) as client:
            pushed(client)
            store.server("s0", "second")
            error = store.wait_for("second")
            assert f"another s0 at unix:{tmp_path}/s0 is alive; give this one a name of its own" in str(error)
            pushed(client)
            assert [v.tolist() for v in client.pull(KEYS)] == [[2, 2, 2]] * len(KEYS)


def test_nothing_is_kept_of_clients_that_came_and_went_and_they_are_refused(tmp_path):
    with Operated(tmp_path, lease_s=0.3) as store:
        store.coordinator()
        store.server("s0", expected=2, replicas=1)
        store.server("s1", expected=2, replicas=1)
        with begun(store) as client:
            pushed(client)
            for _ in range(20):
                with gradtide.connect(store.address) as other:
                    pushed(other)
            servers = [store.running[name][0]._shard_set for name in ("s0", "s1")]

            def records():
                held = [(*server.shards.values(), *server.replication.replicas.values()) for server in servers]
                return {name for shards in held for shard in shards for name in shard.filter.records}

            wait_until(lambda: records() == {client._session.client})
            number = client._session.incarnation + 1  # of the first that came and went
            late = Push(servers[0].epoch, "late", number, 1, b"", parts=(Part(0, ()),))
            owner = next(server for server in servers if 0 in server.owned)
            (answer,) = owner._tell(owner._shard(0), PushPart(late, late.parts[0], 0, []))
            assert answer.message.reason == "incarnation"
        assert [v.tolist() for v in begun_again(store)] == [[21, 21, 21]] * len(KEYS)


def begun_again(store):
    with gradtide.connect(store.address) as client:
        return client.pull(KEYS)


def test_flows_that_something_in_between_forgot_are_opened_again_on_every_kind_of_link(tmp_path):
    names, lease_s = ("c", "s0", "s1"), 0.6
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Operated(tmp_path, lease_s))
        through = {name: f"{tmp_path}/proxy-{name}" for name in names}
        proxies = [Proxy(through[name], f"{tmp_path}/{name}", Weather(), 1) for name in names]
        for proxy in proxies:
            stack.enter_context(proxy)
        store.coordinator()
        for name in names[1:]:
            store.server(
                name, coordinator=f"unix:{through['c']}", advertise=f"unix:{through[name]}", expected=2, replicas=1
            )
        client = stack.enter_context(gradtide.connect(f"unix:{through['c']}"))
        client.init({key: torch.zeros(3) for key in KEYS}, update=gradtide.update("add"))
        count = 0
        while not pushed(client).replicated:
            count += 1
        for _ in range(3):
            for proxy in proxies:
                proxy.forget_flows()
            count += 1
            assert pushed(client) is not None
        wait_until(lambda: is_whole(store))
        wait_until(lambda: all(peer.alive for peer in ask_status(store.address).coordinator.peers))
        assert [v.tolist() for v in client.pull(KEYS)] == [[count + 1] * 3] * len(KEYS)


def fill(path):
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass


def full_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode:
        pytest.skip("a disk of its own needs the right to mount")
    return folder


def test_a_journal_on_a_full_disk_stays_as_it_was_and_the_store_goes_on(tmp_path, caplog):
    folder = full_disk(tmp_path)
    try:
        with Operated(tmp_path) as store, caplog.at_level(logging.ERROR):
            store.coordinator("small/journal")
            store.server("s0")
            with begun(store) as client:
                pushed(client)
                filler = folder / "filler"
                fill(filler)
                before = (folder / "journal").read_bytes()
                store.server("s1")
                wait_until(lambda: "No space left" in caplog.text)
                assert caplog.text.count("No space left") == 1
                for _ in range(5):
                    pushed(client)
                assert (folder / "journal").read_bytes() == before
                assert "No space left" in complaint(store)
                filler.unlink()
                wait_until(lambda: len(ask_status(store.address).coordinator.table.servers) == 2)
                wait_until(lambda: (folder / "journal").read_bytes() != before)
                assert [v.tolist() for v in client.pull(KEYS)] == [[6, 6, 6]] * len(KEYS)
            for name in ("s1", "s0", "coordinator"):
                store.stop(name)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.quick
def test_a_journal_that_is_not_whole_is_named_and_one_without_a_checksum_is_read(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        record = Record(3, 7, None, None)
        journal.write(record)
        data = (tmp_path / "journal").read_bytes()
        assert data.startswith(_MAGIC)
        for damaged in (data[:-1], data[:-1] + b"?", data[:25] + b"?" + data[26:]):
            (tmp_path / "journal").write_bytes(damaged)
            with pytest.raises(gradtide.errors.DataError, match="not whole"):
                journal.read()
        (tmp_path / "journal").write_bytes(b"gradtide journal 1\n" + data[len(_MAGIC) + 8 :])
        assert journal.read() == record
        (tmp_path / "journal").write_bytes(data)
        (tmp_path / "journal.new").mkdir()
        with pytest.raises(OutputError, match="can't be written"):
            journal.write(Record(4, 8, None, None))
        assert journal.read() == record
