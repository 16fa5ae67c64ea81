"""Small and many keys take shorter ways through client and server; what comes out must be the same."""

import socket
import threading
import time

import pytest
import torch

import gradtide
from gradtide.errors import StoreError
from gradtide.store.client.links import Links
from gradtide.store.wire.message_templates import Repeats, Template
from gradtide.store.wire.messages import Part, Piece, Push, ServerEntry, decode, encode, layout_name
from gradtide.store.wire.placement import shard_of
from gradtide.transport.authenticate import dial, parse_address
from gradtide.transport.connection import open_connection
from gradtide.transport.keys import Credentials

SHAPES = [(), (1,), (3,), (2, 3), (4, 1, 2), (7,)]


@pytest.fixture
def two(forks):
    with gradtide.local_servers(2, forks=forks) as started, gradtide.connect(started.address) as store:
        yield started, store


def many(count, value):
    return {f"k{i}": torch.full(SHAPES[i % len(SHAPES)], float(value + i)) for i in range(count)}


@pytest.mark.parametrize("rule", ["add", "max"])
def test_many_keys_come_back_each_in_its_place(two, rule):
    _, store = two
    store.init({key: torch.zeros_like(value) for key, value in many(300, 0).items()}, update=gradtide.update(rule))
    store.push(many(300, 1)).wait()
    expected = many(300, 1)
    names = list(reversed(expected))
    assert all(map(torch.equal, store.pull(names), [expected[name] for name in names]))
    out = {name: torch.empty_like(expected[name]) for name in names}
    store.pull(names, out=out)
    assert all(torch.equal(out[name], expected[name]) for name in names)
    twice = {key: value * 2 if rule == "add" else value for key, value in expected.items()}
    found = store.push_pull(expected)
    assert list(found) == list(twice)
    assert all(map(torch.equal, found.values(), twice.values()))
    weighted = store.push_pull(expected, weight=0.5)
    assert torch.equal(weighted["k5"], twice["k5"] + (0.5 * expected["k5"] if rule == "add" else 0.5))


def test_what_was_pushed_of_many_keys_may_change_at_once(two):
    _, store = two
    values = many(100, 1)
    store.init({key: torch.zeros_like(value) for key, value in values.items()}, update=gradtide.update("add"))
    handle = store.push(values)
    for value in values.values():
        value.fill_(-1)
    handle.wait()
    assert all(map(torch.equal, store.pull(list(values)), many(100, 1).values()))


def test_a_wrong_tensor_among_many_is_named(two):
    _, store = two
    values = many(100, 1)
    store.init(values, update=gradtide.update("add"))
    for wrong in (torch.ones(5), torch.ones(SHAPES[57 % len(SHAPES)], dtype=torch.float64)):
        with pytest.raises(StoreError, match=r"push of 'k57' got float.. "):
            store.push({**values, "k57": wrong})


def test_a_tensor_whose_memory_was_replaced_is_sent_as_it_is_now(two):
    _, store = two
    store.init("w", torch.zeros(4), update=gradtide.update("add"))
    value, out = torch.ones(4), torch.empty(4)
    for _ in range(3):
        store.push_pull("w", value, out=out)
    assert out.tolist() == [3.0] * 4
    value.data = torch.full((4,), 10.0)
    out.data = torch.empty(4)
    assert store.push_pull("w", value, out=out).tolist() == [13.0] * 4
    assert out.tolist() == [13.0] * 4
    value.unsqueeze_(0)
    with pytest.raises(StoreError, match="push_pull of 'w' got float32"):
        store.push_pull("w", value)
    strided = torch.ones(8)[::2]
    assert store.push_pull("w", strided, out=torch.empty(8)[::2]).tolist() == [14.0] * 4
    assert store.push_pull("w", torch.ones(4), weight=3.0).tolist() == [17.0] * 4
    assert store.push_pull("w", torch.ones(4, requires_grad=True)).tolist() == [18.0] * 4


def test_threads_that_share_a_small_key_count_each_push_once(two):
    _, store = two
    store.init({"a": torch.zeros(4), "b": torch.zeros(4)}, update=gradtide.update("add"))

    def work(key):
        for _ in range(100):
            store.push_pull(key, torch.ones(4))
            store.push(key, torch.ones(4)).wait()

    threads = [threading.Thread(target=work, args=(key,)) for key in "abab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.pull("a").tolist() == store.pull("b").tolist() == [400.0] * 4


@pytest.mark.parametrize("in_place", [False, True], ids=["encoded anew", "only the sequence changed"])
def test_a_small_push_that_comes_twice_counts_once_and_gets_the_same_answer(two, in_place):
    _, store = two
    store.init("w", torch.zeros(4), update=gradtide.update("add"))
    table, shard = store.table, shard_of("w", 0)
    address = table.servers[table.owners[shard]].address
    parts = (Part(shard, (Piece("w", 0, 0, 4, 16),)),)
    connection = open_connection(dial(parse_address(address), Credentials(), "worker"), "server")
    answers, landed = [], memoryview(bytearray(16))

    def begin(data):
        answers.append((decode(data), None))
        return landed

    def filled():
        answers[-1] = (answers[-1][0], torch.frombuffer(bytearray(landed), dtype=torch.float32).tolist())

    connection.on_messages(begin, filled)
    body = memoryview(torch.ones(4).numpy()).cast("B")
    for number, sequence in enumerate((1, 2, 3, 3, 2, 5, 5), 1):
        push = Push(table.epoch, "raw", 1, sequence, layout_name(parts), parts if number == 1 else (), pull=True)
        if in_place and number > 1:
            connection.send_frame(bytes(Template(push, 16).push(sequence)), [body], 16)
        else:
            connection.send(encode(push), [body], 16)
        while len(answers) < number or answers[-1][1] is None:
            connection.wait(20, "push")
            connection.receive()
    connection.close()
    said = [(message.sequence, message.version.sequence, values[0]) for message, values in answers]
    assert said == [(1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0), (3, 3, 3.0), (2, 2, 3.0), (5, 4, 4.0), (5, 4, 4.0)]


def test_small_keys_asked_for_in_turn_are_each_answered_with_their_own(two):
    servers, store = two
    keys = [f"k{i}" for i in range(5)]
    store.init({key: torch.zeros(4) for key in keys}, update=gradtide.update("add"))
    with gradtide.connect(servers.address) as other:
        for turn in range(1, 20):
            for i, key in enumerate(keys):
                weight = 2.0 if turn % 7 == 0 else None
                store.push_pull(key, torch.full((4,), float(i)), weight=weight)
                other.push_pull(key, torch.full((4,), 1.0))
    doubled = sum(turn % 7 == 0 for turn in range(1, 20))
    assert [value.tolist() for value in store.pull(keys)] == [[(19.0 + doubled) * i + 19.0] * 4 for i in range(5)]


def test_only_a_request_of_the_same_bytes_but_for_its_sequence_is_familiar():
    push = Push(3, "client", 1, 5, b"layout", pull=True)
    data = memoryview(Template(push, 16).push(5))[12:]  # without the frame's header
    known = Repeats()
    known.remember(data, push, "what was kept")
    again = memoryview(bytes(Template(push, 16).push(1 << 40)))[12:]
    assert known.find(again) == "what was kept"
    assert known.sequence(again) == 1 << 40
    for other in (
        Push(4, "client", 1, 5, b"layout", pull=True),
        Push(3, "client", 2, 5, b"layout", pull=True),
        Push(3, "client", 1, 5, b"layouT", pull=True),
        Push(3, "client", 1, 5, b"layout", weight=2.0, pull=True),
    ):
        assert known.find(memoryview(Template(other, 16).push(5))[12:]) is None
    assert known.find(memoryview(encode(push))) is None, "a small number is written shorter"
    known.remember(memoryview(encode(push)), push, "something else")
    assert len(known.known) == 1


@pytest.mark.timing
def test_a_server_that_is_slow_to_let_us_in_holds_nobody_up(tmp_path):
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/s")
        silent.listen()
        lock, opened = threading.RLock(), threading.Event()
        links = Links(Credentials(), 2.0, lock, lambda link: None, lambda name: opened.set())
        entry = ServerEntry("s", f"unix:{tmp_path}/s", 1)
        started_s = time.monotonic()
        with lock:
            assert links.to(entry) is None
        other, _ = silent.accept()  # it has been dialled, and waits for our proof
        with lock:
            assert links.to(entry) is None
            assert not links.all()
        assert time.monotonic() - started_s < 1.5
        other.close()
        deadline_s = time.monotonic() + 10
        due = []
        while not due and time.monotonic() < deadline_s:
            with lock:
                due = links.due()
        assert due == ["s"]
        assert not opened.is_set()
