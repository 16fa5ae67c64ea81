"""A server answers for its own place in the table, and for nobody that it should have forgotten: pure."""

import msgspec
import pytest

from gradtide.store.shard.image import snapshot
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.cutter import Cutter, Writing
from gradtide.store.wire.messages import (
    Absent,
    BeginCut,
    Gone,
    Init,
    Keys,
    KeySpec,
    Listed,
    Part,
    Piece,
    Push,
    Refused,
    ServerEntry,
    Table,
    UpdateRule,
    Welcome,
    layout_name,
)
from gradtide.testing.simulator.numbers import ExactArithmetic, Number

pytestmark = pytest.mark.quick

SHARDS = 1024
PARTS = (Part(5, (Piece("w", 0, 0, 4, 32),)),)


def table(epoch: int, primary: int, incarnations: tuple[int, int] = (1, 1)) -> Table:
    servers = tuple(ServerEntry(f"s{i}", f"s{i}", number) for i, number in enumerate(incarnations))
    follower = ((1 - primary,),) * SHARDS
    return Table(1, epoch, servers, (primary,) * SHARDS, 1, follower, ((),) * SHARDS, (0,) * SHARDS)


def a_server(name: str, incarnation: int, first: Table) -> ShardSet[Number]:
    host = ShardSet(name, incarnation, name, ExactArithmetic())
    host.tick(10.0)
    host.hear(Welcome(name, incarnation, 2.0), 10.0)
    host.hear(first, 10.0)
    return host


def test_a_server_that_was_started_again_does_not_answer_for_the_process_before() -> None:
    host = a_server("s0", 2, table(1, primary=0))

    def write(*_: object) -> Writing[Number]:
        raise AssertionError("it has nothing to write")

    cutter = Cutter(host, wake=lambda: None, copy=host.arithmetic.copy, begin_writing=write)
    begun = cutter.handle(BeginCut(1, "c", 3, 1, "cut", "cut"), 10.0)[0].message
    listed = host.handle(Keys(1, "c", 3, 2, ""))[0].message
    assert [(type(answer), getattr(answer, "reason", "")) for answer in (begun, listed)] == [(Refused, "epoch")] * 2
    host.hear(table(2, primary=1, incarnations=(2, 1)), 10.1)
    assert isinstance(host.handle(Keys(2, "c", 3, 3, ""))[0].message, Listed)


def test_a_replica_that_hears_of_the_gone_before_its_primary_does_forgets_them_when_it_is_promoted() -> None:
    primary, replica = a_server("s0", 1, table(1, primary=0)), a_server("s1", 1, table(1, primary=0))
    primary.handle(Init(1, "c", 3, 1, KeySpec("w", (4,), "int64", UpdateRule("add")), PARTS), [Number(0, 4)])
    primary.handle(Push(1, "c", 3, 2, layout_name(PARTS), PARTS), [Number(1, 4)])
    replica.hear(Gone(Absent(4)), 10.1)
    replica.hear_server(*snapshot(primary.shards[5], 1, "s0"), 10.2)
    replica.hear(table(2, primary=1), 10.3)
    assert replica.shards[5].blocks["w", 0].state.value().number == 1
    assert replica.shards[5].filter.records == {}


def test_a_late_snapshot_turns_nothing_back_when_the_coordinator_was_started_again_meanwhile() -> None:
    primary, replica = a_server("s0", 1, table(1, primary=0)), a_server("s1", 1, table(1, primary=0))
    primary.handle(Init(1, "c", 3, 1, KeySpec("w", (4,), "int64", UpdateRule("add")), PARTS), [Number(0, 4)])
    late = snapshot(primary.shards[5], 1, "s0")
    primary.handle(Push(1, "c", 3, 2, layout_name(PARTS), PARTS), [Number(1, 4)])
    for sent in primary.take_outbox():
        replica.hear_server(sent.message, sent.values, 10.1)
    confirmed = replica.replication.replicas[5].position
    assert confirmed == primary.shards[5].position
    replica.hear(msgspec.structs.replace(table(1, primary=0), term=2), 10.2)
    replica.hear_server(*late, 10.3)
    assert replica.replication.replicas[5].position == confirmed
