"""What can't be compressed is refused by name, or goes as it is; the server lives on whatever it is sent."""

import threading

import pytest
import torch
from msgspec.structs import replace

import gradtide
from gradtide.compress import Compress
from gradtide.errors import ConfigError, NotMember, StoreError
from gradtide.store.client.operations import Done
from gradtide.store.client.session import Session
from gradtide.store.client.tensors import compressed
from gradtide.store.client.tensors.values import destinations, make_piece_map
from gradtide.store.rules.codecs import block_codec, encoded_bytes
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import InitPart, PullPart, PushPart
from gradtide.store.wire.messages import (
    Decree,
    Init,
    KeySpec,
    Member,
    Part,
    Piece,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    ServerEntry,
    Table,
    UpdateRule,
    Version,
)
from gradtide.store.wire.placement import deal

COUNT = 640


@pytest.fixture(scope="module")
def address(forks):
    with gradtide.local_servers(1, forks=forks) as servers:
        yield servers.address


@pytest.mark.parametrize(
    ("value", "update", "codec", "line"),
    [
        (torch.zeros(9, dtype=torch.int64), "add", "int8", "'k' is int64; compress= goes with float32 and float64"),
        (torch.zeros(9), "max", "int8", "updated by 'max'; compress= goes with optimizers"),
        (torch.zeros(9), "assign", "int8", "updated by 'assign'"),
        (torch.zeros(9), "sgd", "powersgd", "powersgd can't go over servers"),
        (torch.zeros(9), "adam", "onebit", "onebit with adam does not converge"),
        (torch.zeros(9), "adamw", "onebit", "onebit with adamw does not converge"),
        (torch.zeros(9), "sgd", "auto", "name a codec for a key"),
        (torch.zeros(9), "sgd", "zip", "no codec is called that"),
        (torch.zeros(9), "sgd", Compress("int8", after=3), "leave after= out"),
    ],
)
def test_what_can_not_be_compressed_is_refused_in_one_line(address, value, update, codec, line):
    with gradtide.connect(address) as store, pytest.raises(ConfigError, match=line):
        store.init("k", value, update=gradtide.update(update), compress=codec)


def test_a_key_that_is_compressed_otherwise_is_another_key(address):
    with gradtide.connect(address) as store:
        store.init("other", torch.zeros(COUNT), update=gradtide.update("add"), compress="int8")
        assert store.info("other").compress == "int8"
        with pytest.raises(StoreError, match="with compress scaled_fp16, but it was first initialised with int8"):
            store.init("other", torch.zeros(COUNT), update=gradtide.update("add"), compress="fp16")


def spoil(name, body):
    """As a peer who means harm would send it."""
    numbers = body.numpy()
    kept = COUNT // 10
    values, places = numbers[: 4 * kept].view("float32"), numbers[4 * kept :].view("uint32")
    if name == "beyond":
        places[-1] = COUNT
    elif name == "twice":
        places[1] = places[0]
    elif name == "unsorted":
        places[[0, 1]] = places[[1, 0]]
    elif name == "nan":
        values[0] = float("nan")
    return body


@pytest.mark.parametrize("how", ["beyond", "twice", "unsorted", "nan"])
def test_a_hostile_payload_is_refused_and_the_server_lives_on(address, how, monkeypatch):
    shrink = compressed.shrink

    def hostile(*given, **more):
        made = shrink(*given, **more)
        spoil(how, made.values)
        return made

    with gradtide.connect(address) as store:
        store.init("h", torch.zeros(COUNT), update=gradtide.update("add"), compress="topk:0.1")
        before = store.pull("h")
        monkeypatch.setattr(compressed, "shrink", hostile)
        with pytest.raises(StoreError, match="has hung up 3 times at this request"):
            store.push("h", torch.randn(COUNT)).wait(30)
        monkeypatch.undo()
        assert not store.residuals(), "what was not taken leaves nothing"
        assert torch.equal(store.pull("h"), before)
        store.push("h", torch.ones(COUNT), flush=True, wait=True)
        assert torch.equal(store.pull("h"), before + 1)


@pytest.mark.parametrize("size", [4, 511, 513, 1 << 20])
def test_a_payload_of_another_length_is_refused_before_anything_is_allocated(address, size, monkeypatch):
    with gradtide.connect(address) as store:
        store.init("l", torch.zeros(COUNT), update=gradtide.update("add"), compress="topk:0.1")
        monkeypatch.setattr(store._session, "encoded_bytes", lambda spec, count: size)
        monkeypatch.setattr(
            compressed, "shrink", lambda *_, **__: compressed.Shrunk(torch.zeros(size, dtype=torch.uint8), encoded=True)
        )
        with pytest.raises(StoreError, match="has hung up 3 times at this request"):
            store.push("l", torch.randn(COUNT)).wait(30)
    with gradtide.connect(address) as store:
        assert store.pull("l").abs().sum() == 0


def test_what_is_not_finite_goes_as_it_is_and_leaves_the_residual_alone(address):
    with gradtide.connect(address) as store:
        store.init("n", torch.zeros(COUNT), update=gradtide.update("add"), compress="topk:0.1")
        store.push("n", torch.arange(COUNT).float(), wait=True)
        left = store.residuals()["n"]
        bad = torch.ones(COUNT)
        bad[7], bad[8] = float("inf"), float("nan")
        store.push("n", bad, wait=True)
        assert torch.equal(store.residuals()["n"], left)
        value = store.pull("n")
        assert value[7].isinf()
        assert value[8].isnan()
        assert value[9] == 1
        assert value[-1] == COUNT


def test_a_push_that_counts_nothing_leaves_the_residual_alone(address):
    with gradtide.connect(address, worker=0, consistency="bsp") as store:
        store.init("z", torch.zeros(COUNT), update=gradtide.update("sgd", lr=1.0), compress="topk:0.1")
        store.push("z", torch.arange(COUNT).float(), wait=True)
        left = store.residuals()["z"]
        for weight in (-1.0, 0.0):
            store.push("z", torch.zeros(COUNT), weight=weight, wait=True)
            assert torch.equal(store.residuals()["z"], left)


def test_in_rounds_weights_that_are_not_finite_come_whole_and_then_differences_again(address):
    with gradtide.connect(address, worker=0, consistency="bounded:1") as store:
        store.init("b", torch.zeros(COUNT), update=gradtide.update("add"), compress="topk:0.25")
        seen = []
        for step in range(7):
            seen.append(store.pull("b"))
            given = torch.arange(COUNT).float()
            if step == 2:
                given[5] = float("inf")
            store.push("b", given)
        assert [bool(values[5].isinf()) for values in seen] == [False] * 4 + [True] * 3
        assert seen[6][-1] > seen[4][-1] > seen[3][-1] > 0
        assert torch.equal(seen[6], store.pull("b", rows=slice(0, COUNT))) is False  # a step further


def test_residuals_are_scaled_but_never_by_what_is_no_number(address):
    with gradtide.connect(address) as store:
        store.init("s", torch.zeros(COUNT), update=gradtide.update("add"), compress="topk:0.1")
        store.push("s", torch.arange(COUNT).float(), wait=True)
        left = store.residuals()["s"]
        store.scale_residuals(0.5)
        assert torch.equal(store.residuals()["s"], left * 0.5)
        store.scale_residuals(2.0, ["another"])
        assert torch.equal(store.residuals()["s"], left * 0.5)
        with pytest.raises(ConfigError, match="can't be scaled by inf"):
            store.scale_residuals(float("inf"))


def test_push_pull_of_a_compressed_key_is_a_push_and_a_pull(address):
    with gradtide.connect(address) as store:
        store.init("p", torch.zeros(COUNT), update=gradtide.update("add"), compress="fp16")
        assert torch.equal(store.push_pull("p", torch.ones(COUNT)), torch.ones(COUNT))
        with pytest.raises(ConfigError, match="it is compressed"):
            store.push_pull("p", torch.ones(COUNT), wait=False)


def test_a_codec_that_would_make_a_block_larger_is_not_used():
    spec = KeySpec("w", (COUNT,), "float32", UpdateRule("sgd"), 0, compress="topk:1.0")
    assert block_codec(spec, COUNT) is None
    assert block_codec(KeySpec("w", (1,), "float32", UpdateRule("sgd"), 0, compress="int8"), 1) is None


SPEC = KeySpec("w", (64,), "float64", UpdateRule("add"), 0, compress="topk:0.1")


def test_until_its_first_step_is_over_a_worker_is_given_values_whole():
    """One that was struck off and comes again has been given a later round than it asked for, and can't add to that."""
    shard, part = Shard(5, TorchArithmetic(), Version(1, 0)), Part(5, (Piece("w", 0, 0, 64, 512),))
    small = Part(5, (Piece("w", 0, 0, 64, block_codec(SPEC, 64).size_bytes, encoded=True),))
    shard.handle(InitPart(Init(1, "w0", 1, 1, SPEC, (part,)), part, [torch.zeros(64, dtype=torch.float64)]))
    member = Member(0, 1, "w0", 1)
    shard.handle(Decree(1, 1, (member,)))
    for round_ in (1, 2, 3):
        push = Push(1, "w0", 1, 2 * round_, b"", (part,), round=round_, worker=0)
        assert isinstance(shard.handle(PushPart(push, part, 0, [gradient(0, round_)]))[0].message, Pushed)

    def pulled(step):
        pull = Pull(1, "w0", 1, 2 * step + 1, b"", (small,), round=step, worker=0)
        return shard.handle(PullPart(pull, small, 0, Version()))[0].message

    assert isinstance(pulled(4), Pulled)
    shard.handle(Decree(1, 2, (replace(member, from_round=4),)))
    assert pulled(4).reason == "whole"


def gradient(worker, step):
    generator = torch.Generator().manual_seed(7919 * step + worker)
    return torch.randint(-40, 41, (64,), generator=generator).double()


class Nobody:
    """A client's shell that sends nothing."""

    def __init__(self, session):
        self.session, self.lock, self.closed = session, threading.RLock(), False

    def start(self, pending, begin):
        assert self.session.ready, "nobody may wait here"
        pending.sequence, _ = begin(0.0)


def test_a_worker_that_is_struck_off_while_it_pulls_is_told_so_and_nobody_waits_for_it_to_be_in_again():
    session = Session("w0", 1, 0, encoded_bytes=encoded_bytes)
    session.hear(Table(1, 1, (ServerEntry("s", "host", 1),), deal(1)), 0.0)
    session.hear(Decree(1, 1, (Member(0, 1, "w0", 1),)), 0.0)
    session.learn(SPEC)
    store = compressed.StoreCompression(Nobody(session))
    piece_map = make_piece_map(session.layout(("w",)), (SPEC,), None)
    landing = destinations(piece_map, "w", None)

    def refused_pull():
        pull = store.pull(lambda: "pull", piece_map, landing, lambda done: None, rows=None, at_least=None)
        return pull, Done(pull.sequence, "pull", {}, {}, refused=Refused(pull.sequence, 5, "whole", "pull it whole"))

    pull, refused = refused_pull()
    pull.finish(refused)
    assert not pull.over, "it asks again"
    pull, refused = refused_pull()
    session.hear(Decree(1, 2, ()), 0.0)
    pull.finish(refused)
    with pytest.raises(NotMember, match="worker 0 was struck off while it pulled"):
        pull.result()
