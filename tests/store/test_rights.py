"""Who may say what to a store, and that no word ends a process."""

import contextlib
import time

import msgspec
import pytest
import torch
from operated import Operated

import gradtide
from gradtide.errors import Closed, CommunicationError, FrameError, PeerLost, StoreError
from gradtide.store.local.status import ask_status
from gradtide.store.wire.messages import (
    Beat,
    BlockImage,
    CaughtUp,
    Created,
    Decree,
    Fenced,
    Inspect,
    Join,
    KeySpec,
    Lagging,
    Leave,
    Promise,
    Push,
    Replicate,
    Replicated,
    Resize,
    Slot,
    Snapshot,
    Updated,
    UpdateRule,
    Version,
    decode,
    encode,
)
from gradtide.store.wire.rights import check_rights
from gradtide.transport.authenticate import dial, parse_address
from gradtide.transport.connection import open_connection
from gradtide.transport.keys import Credentials
from store_processes import wait_until

V = Version()
OF_SERVERS = [
    Replicate(1, "s0", 0, V, V, V),
    Replicated(1, "s0", 0, V),
    Snapshot(1, "s0", 0, V, V, (), (), ()),
    Fenced(1, "s0"),
    Promise("s0", 1, 1, 1),
    CaughtUp("s0", 1, 1, "s1", (0,)),
    Lagging("s0", 1, 1, "s1"),
    Join("server", "s0", 1),
]


@pytest.mark.quick
@pytest.mark.parametrize("message", OF_SERVERS, ids=lambda message: type(message).__name__)
def test_what_servers_say_is_for_the_server_of_that_name(message):
    check_rights(message, "server", "s0")
    check_rights(message, "server", "")
    for role, name in (("worker", "s0"), ("operator", "s0"), ("server", "s1"), ("", "")):
        with pytest.raises(FrameError, match=f"may not say {type(message).__name__}"):
            check_rights(message, role, name)


@pytest.mark.quick
def test_who_joined_as_a_server_is_spoken_for_by_itself_and_operators_resize():
    for message in (Beat("s0", 1), Leave("s0", 1)):
        check_rights(message, "worker", "w3")
        with pytest.raises(FrameError):
            check_rights(message, "worker", "w3", is_server=True)
    check_rights(Resize(2), "operator", "")
    with pytest.raises(FrameError, match="may not say Resize"):
        check_rights(Resize(2), "worker", "w3")
    for message in (Inspect(), Push(1, "c", 1, 1, b""), Join("worker", "w", 1)):
        check_rights(message, "worker", "w3")


def say(address, role, message, values=()):
    """Says something to whoever listens, and waits until it hangs up or a moment is over."""
    connection = open_connection(dial(parse_address(address), Credentials(), role), address)
    connection.on_messages(lambda data: None, lambda: None)
    bodies = [memoryview(value.numpy()).cast("B") for value in values]
    with contextlib.closing(connection), contextlib.suppress(CommunicationError):
        connection.send(encode(message), bodies, sum(map(len, bodies)))
        deadline_s = time.monotonic() + 5
        while time.monotonic() < deadline_s:
            connection.wait(0.3, "an end")
            connection.receive()


def created(key):
    return Created(KeySpec(key, (2,), "float32", UpdateRule("add")), 0, 2, 8, b"")


STRANGE = [
    (Replicate(1, "s9", 3, V, V, V, (Updated("no such key", 0),), (Slot("float32", 2),)), (torch.ones(2),)),
    (Replicate(1, "s0", -7, V, Version(9, 9), V, (created("k0"),), (Slot("float32", 2),)), (torch.ones(2),)),
    (Snapshot(9, "s0", 5000, V, V, (BlockImage(created("a"), -1, (), (), (), {}, ("x",), 7),), (), ()), ()),
    (Replicated(9, "nobody", 4096, Version(99, 99)), ()),
    (Fenced(99, "s0"), ()),
]


@pytest.mark.parametrize("role", ["worker", "server"])
def test_no_word_ends_a_server_and_nothing_changes(tmp_path, role):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address) as client:
            client.init("k0", torch.zeros(2), update=gradtide.update("add"))
            client.push("k0", torch.ones(2), wait=True)
            for message, values in STRANGE:
                say(f"unix:{tmp_path}/s0", role, message, values)
            client.push("k0", torch.ones(2), wait=True)
            assert client.pull("k0").tolist() == [2, 2]
            assert client.keys() == ["k0"]
        assert store.errors == {}


def test_no_word_of_a_client_ends_or_misleads_the_coordinator(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address) as client:
            client.init("k0", torch.zeros(2), update=gradtide.update("add"))
            before = ask_status(store.address).coordinator.table
            for message in (
                Join("server", "s0", 10**9, "unix:/elsewhere", term=99, epoch=99),
                Join("server", "s7", 0, "unix:/elsewhere", token=5),
                Beat("s0", 1, 99, 99), Leave("s0", 1), Resize(1), Promise("s0", 1, 5, 5), Lagging("s0", 1, 1, "s0"),
                Beat("nobody", -1, -5, -5), Decree(9, 9, ()), Join("worker", "w", 2**62, worker=-5, token=-1),
            ):  # fmt: skip
                say(store.address, "worker", message)
            assert ask_status(store.address).coordinator.table == before
            client.push("k0", torch.ones(2), wait=True)
        assert store.errors == {}


def test_checkpoints_are_written_only_where_the_server_was_told(tmp_path):
    allowed, elsewhere = tmp_path / "allowed", tmp_path / "elsewhere"
    allowed.mkdir()
    elsewhere.mkdir()
    (allowed / "link").symlink_to(elsewhere)
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0", roots=(str(allowed),))
        with gradtide.connect(store.address) as client:
            client.init("k0", torch.zeros(2))
            assert client.checkpoint(allowed / "deeper").address.startswith(str(allowed))
            for place in (elsewhere, allowed / ".." / "elsewhere", allowed / "link", f"{allowed}-not"):
                with pytest.raises(StoreError, match="start it with --checkpoints"):
                    client.checkpoint(place)
            assert not list(elsewhere.rglob("*.safetensors"))


def test_a_request_that_cannot_be_taken_is_answered_by_name_and_its_client_stays(tmp_path):
    heard = []
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address) as client:
            client.init("k0", torch.zeros(2), update=gradtide.update("add"))
            line = dial(parse_address(f"unix:{tmp_path}/s0"), Credentials(), "worker")
            with contextlib.closing(open_connection(line, "s0")) as connection:
                connection.on_messages(lambda data: heard.append(decode(data)), lambda: None)
                for sequence, tag in enumerate((1, 2, 3, 4, 5, 6, 7), 1):
                    words = msgspec.msgpack.encode([tag, 1, "old", 5, sequence, {"a": [1, "x"]}, 3.5, b"?"])
                    connection.send(words, (memoryview(b"some values"),), 11)
                    while len(heard) < sequence:
                        connection.wait(20, "an answer")
                        connection.receive()
            client.push("k0", torch.ones(2), wait=True)
    assert [(word.sequence, word.reason) for word in heard] == [(n, "rule") for n in range(1, 8)]
    assert all("server s0 can't take this request of old: " in word.text for word in heard)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_background_thread_that_dies_fails_every_wait_with_its_reason(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0")
        with gradtide.connect(store.address, worker=0, workers=1, consistency="bsp") as client:
            client.init("k0", torch.zeros(2), update=gradtide.update("add"))
            other = gradtide.connect(store.address, worker=1, consistency="bsp")
            wait_until(lambda: set(client.first_rounds) == {0, 1})
            client.begin_at(client.first_rounds[1])
            handle = client.push("k0", torch.ones(2))  # waits for the other worker
            client._engine.links.due = lambda: 1 / 0  # something is broken in here
            with pytest.raises(Closed, match="can't be used any more: ZeroDivisionError"):
                handle.wait(20)
            with pytest.raises(Closed, match="can't be used any more"):
                client.push("k0", torch.ones(2))
            other.close()


def test_an_address_that_leads_to_another_process_of_the_job_is_found_out(tmp_path):
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0", expected=2)
        store.server("s1", expected=2, advertise=f"unix:{tmp_path}/s0")  # a mistake, or somebody's redirection
        timeouts = gradtide.Timeouts(lost_s=1.0, resend_s=0.1)
        keys = {f"k{i}": torch.zeros(2) for i in range(8)}
        with (
            gradtide.connect(store.address, timeouts=timeouts) as client,
            pytest.raises(PeerLost, match="server s1 at"),
        ):
            client.init(keys, update=gradtide.update("add"))
        with pytest.raises(CommunicationError, match="server s0 answers there instead of coordinator"):
            gradtide.connect(f"unix:{tmp_path}/s0", timeouts=timeouts)
