"""A server answers for its own place in the table: the machines alone."""

import pytest

from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.cutter import Cutter, Writing
from gradtide.store.wire.messages import (
    BeginCut,
    Keys,
    Listed,
    Refused,
    ServerEntry,
    Table,
    Welcome,
)
from gradtide.testing.simulator.numbers import ExactArithmetic, Number

pytestmark = pytest.mark.quick

SHARDS = 1024


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
