"""The cut through the shards of all servers, on the machines alone: messages in any order, copies at any time."""

from random import Random

import pytest
import torch
from cluster import Cluster

from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.cut import Cut, Cutting
from gradtide.store.shard.image import restore, revive
from gradtide.store.shard.refusals import Refusal
from gradtide.store.shard.rounds import Block
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import PushPart, RoundsEmpty
from gradtide.store.snapshot.copies import Copies
from gradtide.store.wire.messages import (
    Decree,
    KeySpec,
    Part,
    Piece,
    Propose,
    Push,
    Pushed,
    Source,
    Table,
    UpdateRule,
    Version,
)

pytestmark = pytest.mark.quick

ADAM = UpdateRule("adam", {"lr": 0.1})
SPECS = [KeySpec(f"k{i}", (7,), "float32", ADAM, delay) for i in range(6) for delay in (0,)]
ARITHMETIC = TorchArithmetic()


def gradient(key, worker, round_):
    return torch.randn(7, generator=torch.Generator().manual_seed(hash((key, worker, round_)) % 1000))


def started(shuffle, delay):
    cluster = Cluster(3, 2, shuffle)
    specs = [KeySpec(spec.key, spec.shape, spec.dtype, spec.update, delay) for spec in SPECS]
    for spec in specs:
        cluster.init(spec, torch.ones(7))
    return cluster, specs


def push_round(cluster, specs, round_):
    for worker in cluster.sessions:
        for spec in specs:
            cluster.push(worker, spec, gradient(spec.key, worker, round_), round_=round_)


def states(shards):
    return {
        name: (block.closed, block.state.value().tolist(), {k: v.tolist() for k, v in block.state.beside().items()})
        for shard in shards
        for name, block in shard.blocks.items()
    }


def deliver_some(cluster, rng):
    for _ in range(rng.randrange(1, 6)):
        ready = sorted(name for name, queue in cluster._queues.items() if queue)
        if ready:
            cluster._queues[rng.choice(ready)].popleft()()


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("seed", range(8))
def test_every_shard_is_copied_as_it_closes_the_round_whatever_comes_when(seed, delay):
    rng = Random(seed)
    reference, specs = started(Random(seed), delay)
    for round_ in range(1, 5):
        push_round(reference, specs, round_)
    reference.settle()
    expected = states(shard for host in reference.hosts.values() for shard in host.shards.values())

    cluster, specs = started(rng, delay)
    for round_ in range(1, 5):
        push_round(cluster, specs, round_)
    for _ in range(rng.randrange(80)):
        deliver_some(cluster, rng)
    cuts = [
        Cutting.begin("c", "w0", 4, 1, host.shards.values(), 0.0, ARITHMETIC.copy) for host in cluster.hosts.values()
    ]
    for round_ in range(5, 9):
        push_round(cluster, specs, round_)
    copies, members = [], {m.worker: m for m in cluster.membership.decree.members}
    while any(cluster._queues.values()):
        deliver_some(cluster, rng)
        if rng.random() < 0.3:
            copies += rng.choice(cuts).take(rng.choice([0, 1, 10**9]), members)
    for cut in cuts:
        copies += cut.take(10**9, members)
        assert not cut.cuts
    revived = [restore(word, values, ARITHMETIC) for word, values in copies]
    assert states(revived) == expected
    assert {
        block.closed for host in cluster.hosts.values() for s in host.shards.values() for block in s.blocks.values()
    } == {8}


def test_a_cut_at_a_round_that_is_closed_is_refused_and_changes_nothing():
    cluster, specs = started(None, 0)
    push_round(cluster, specs, 1)
    cluster.settle()
    (host, *_) = cluster.hosts.values()
    with pytest.raises(Refusal, match="round 1 is closed, and the cut was to be at 0"):
        Cutting.begin("c", "w0", 0, 1, host.shards.values(), 0.0, ARITHMETIC.copy)
    assert all(shard.cut is None for shard in host.shards.values())


def test_a_key_that_nobody_pushes_to_is_taken_as_it_is_once_all_have_come_by():
    cluster, specs = started(None, 0)
    quiet = KeySpec("quiet", (3,), "float32", UpdateRule("add"), 0)
    cluster.init(quiet, torch.arange(3.0))
    host = next(
        host
        for host in cluster.hosts.values()
        if any(key == "quiet" for s in host.shards.values() for key, _ in s.blocks)
    )
    push_round(cluster, specs, 1)
    cluster.settle()
    push_round(cluster, specs, 2)
    cuts = Cutting.begin("c", "w0", 2, 1, host.shards.values(), 0.0, ARITHMETIC.copy)
    members = {member.worker: member for member in host.decree.members}
    found = list(cuts.take(10**9, members))
    cluster.settle()
    found += cuts.take(10**9, members)
    assert len(cuts.cuts) == 1  # for all it knows somebody's push of round 2 is still on its way
    assert cuts.waits_for(members) == "'quiet' is at round 0; waited for worker 0, 1"
    push_round(cluster, specs, 3)
    cluster.settle()
    found += cuts.take(10**9, members)
    assert not cuts.cuts
    assert any(image.created.spec.key == "quiet" for word, _ in found for image in word.blocks)


def test_a_cut_of_a_round_that_nobody_is_in_is_over_and_who_comes_begins_after_it():
    """A worker that was started again took part in a round whose checkpoint had been written without it."""
    cluster, specs = started(None, 0)
    push_round(cluster, specs, 1)
    cluster.settle()
    shard = next(shard for host in cluster.hosts.values() for shard in host.shards.values() if shard.blocks)
    cutting = Cutting.begin("c", "v", 3, 1, [shard], 0.0, ARITHMETIC.copy)
    shard.handle(Decree(1, shard.decree + 1, ()))
    assert list(cutting.take(10**9, {})) == [], "somebody may come, and be in round 2"
    assert shard.promise(Propose(1, shard.decree + 1)) == 2
    shard.handle(RoundsEmpty(3))
    assert list(cutting.take(10**9, {})) == [], "who was promised round 2 may be in it"

    shard.handle(Decree(1, shard.decree + 2, ()))
    shard.handle(RoundsEmpty(3))
    ((word, _),) = cutting.take(10**9, {})
    assert {block.closed for block in word.blocks} == {3}
    assert shard.promise(Propose(1, shard.decree + 1)) == 4


def async_shard():
    shard = Shard(5, ARITHMETIC, Version(1, 0))
    spec = KeySpec("w", (2,), "float32", UpdateRule("add"))
    value = torch.zeros(2)
    shard.blocks["w", 0] = Block(spec, 2, 8, ARITHMETIC.digest(value), ARITHMETIC.create(spec, value))
    return shard


def push_once(shard, sequence, client="c"):
    part = Part(5, (Piece("w", 0, 0, 2, 8),))
    (answer,) = shard.handle(PushPart(Push(1, client, 1, sequence, b""), part, 0, [torch.ones(2)]))
    return answer.message


def test_the_duplicate_filter_is_in_the_copy_and_knows_what_is_in_the_value():
    shard = async_shard()
    first = push_once(shard, 1)
    cut = Cut.of(shard, 0, ARITHMETIC.copy)
    push_once(shard, 2)
    cut.copy_due(10**9, lambda: False)
    push_once(shard, 3)
    copy = revive(*cut.image(), ARITHMETIC)
    copy.adopt_epoch(1)
    assert copy.blocks["w", 0].state.value().tolist() == [2.0, 2.0]
    assert push_once(copy, 1) == first
    assert isinstance(push_once(copy, 2), Pushed)
    assert copy.blocks["w", 0].state.value().tolist() == [2.0, 2.0]
    push_once(copy, 3)
    assert copy.blocks["w", 0].state.value().tolist() == [3.0, 3.0]


def test_a_primary_that_has_nothing_of_a_shard_begins_with_the_checkpoint_and_answers_nobody_until_then():
    cluster = Cluster(2, 1)
    (host, other) = cluster.hosts.values()
    old = host.table
    source = Source(2, "/somewhere", 7)
    lost = Table(old.term, 2, old.servers, old.owners, lost=(2,) * 1024, sources=(source,))
    host.hear(lost, 0.0)
    assert set(host.to_load) == set(host.owned)
    assert not host.accepts_questions
    mine = min(host.owned)
    shard = async_shard()
    shard.number = mine
    host.install([shard], source)
    assert host.accepts_questions
    assert list(host.shards) == [mine]
    host.hear(Table(old.term, 3, old.servers, old.owners, lost=lost.lost, sources=(source,)), 0.0)
    assert not host.to_load  # it has it, and what it has not is not in the checkpoint
    other.hear(lost, 0.0)
    assert set(other.to_load) == set(other.owned)


@pytest.mark.parametrize("elements", [0, 1, 7, 1 << 19])
def test_copies_are_the_same_and_their_memory_is_used_again(elements):
    copies, value = Copies(), torch.randn(elements)
    first = copies.make(value)
    assert torch.equal(first, value)
    value += 1
    copies.take_back([first])
    again, another = copies.make(value), copies.make(value)
    assert torch.equal(again, value)
    assert torch.equal(another, value)
    assert again.data_ptr() == first.data_ptr()
    assert another.data_ptr() != again.data_ptr() or not elements
    assert copies.make(torch.tensor(2.0)).shape == ()
