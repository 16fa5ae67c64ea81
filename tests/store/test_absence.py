"""Who is silent, and who only was not listening: the machines, by a clock of the test's own."""

import pytest

from gradtide.store.coordinator.membership import Membership
from gradtide.store.shard.inventory import describe_health
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import (
    Beat,
    CaughtUp,
    Init,
    Join,
    KeySpec,
    Lagging,
    Part,
    Piece,
    Replicate,
    Replicated,
    ServerEntry,
    Table,
    UpdateRule,
    Version,
    Welcome,
)
from gradtide.testing.simulator.numbers import ExactArithmetic, Number

pytestmark = pytest.mark.quick

SHARDS = 1024


def all_on_the_first() -> Table:
    servers = tuple(ServerEntry(f"s{i}", f"s{i}", 1) for i in range(2))
    return Table(1, 1, servers, (0,) * SHARDS, 1, ((1,),) * SHARDS, ((),) * SHARDS, (0,) * SHARDS)


def primary_with_an_unconfirmed_entry() -> ShardSet[Number]:
    host = ShardSet("s0", 1, "s0", ExactArithmetic())
    host.tick(10.0)
    host.hear(Welcome("s0", 1, 2.0), 10.0)
    host.hear(all_on_the_first(), 10.0)
    part = Part(5, (Piece("w", 0, 0, 4, 32),))
    host.handle(Init(1, "c", 1, 1, KeySpec("w", (4,), "int64", UpdateRule("add")), (part,)), [Number(0, 4)])
    assert host.take_outbox(), "its replica was sent the entry"
    return host


def complains(host: ShardSet[Number], now_s: float) -> bool:
    return any(isinstance(word, Lagging) for word in host.tick(now_s))


def test_a_primary_that_has_just_come_is_not_said_to_answer_nobody_and_answers_with_its_first_lease() -> None:
    host = ShardSet("s0", 1, "s0", ExactArithmetic())
    host.hear(Welcome("s0", 1, 2.0), 10.0)
    host.hear(all_on_the_first(), 10.0)
    host.tick(10.1)
    assert host.lapsed
    assert not describe_health(host).lapsed, "its first beat is on the way"
    host.hear(Welcome("s0", 1, 2.0, clock_s=10.0), 10.2)
    assert not host.lapsed
    host.tick(12.1)
    assert describe_health(host).lapsed


def test_a_primary_that_was_stopped_complains_about_nobody_before_it_has_listened() -> None:
    host = primary_with_an_unconfirmed_entry()
    assert not complains(host, 10.1)
    assert not complains(host, 12.0), "it was stopped: what its replica said may be waiting to be read"
    later = [round(12.0 + i / 10, 1) for i in range(1, 21)]
    assert 13.4 <= min(now_s for now_s in later if complains(host, now_s)) <= 13.7


def test_a_replica_that_is_silent_to_a_primary_that_listens_is_complained_about_in_time() -> None:
    host = primary_with_an_unconfirmed_entry()
    assert not any(complains(host, 10 + i / 10) for i in range(1, 15))
    assert any(complains(host, 11.4 + i / 10) for i in range(1, 5))


def test_a_server_that_came_back_empty_and_falls_silent_is_noticed_like_any_other() -> None:
    membership = Membership(lease_s=2.0)
    for i in range(3):
        membership.hear(Join("server", f"s{i}", 1, f"s{i}", expected=3, replicas=1), 0.0)
    membership.lost("s1", 1)
    assert membership.table is not None
    for primary, replica in ((0, 2), (2, 0)):
        epoch, joining, owners = membership.table.epoch, membership.table.joining, membership.table.owners
        shards = tuple(n for n in range(SHARDS) if owners[n] == primary and replica in joining[n])
        membership.hear(CaughtUp(f"s{primary}", 1, epoch, f"s{replica}", shards), 0.1)
    assert all(membership.table.backups)
    membership.hear(Join("server", "s1", 2, "s1", expected=3, replicas=1), 0.2)
    for tenth in range(2, 24):
        for name in ("s0", "s2"):
            membership.hear(Beat(name, 1), tenth / 10)
        membership.tick(tenth / 10)
    assert {peer.name: peer.alive for peer in membership.describe(2.3).peers} == {"s0": True, "s1": False, "s2": True}


def test_a_replica_that_learns_of_the_table_late_is_told_again_at_once() -> None:
    """Without a tick of the primary's clock: after half a second it would have said it again by itself."""
    primary = primary_with_an_unconfirmed_entry()
    primary.replication.now_s = 10.0
    replica = ShardSet("s1", 1, "s1", ExactArithmetic())
    replica.tick(10.0)
    replica.hear(Welcome("s1", 1, 2.0), 10.0)
    entry = Replicate(1, "s0", 5, Version(), Version(1, 1), Version(1, 1))
    replica.hear_server(entry, (), 10.0)
    assert not replica.take_outbox(), "it does not know who is primary"
    replica.hear(all_on_the_first(), 10.01)
    (asked,) = replica.take_outbox()
    assert (asked.name, asked.message) == ("s0", Replicated(1, "s1", 5, Version(), again=True))
    primary.hear_server(asked.message, (), 10.02)
    (said,) = primary.take_outbox()
    assert (said.name, said.message.position) == ("s1", Version(1, 1))
    replica.hear_server(said.message, said.values, 10.03)
    assert [word.message.position for word in replica.take_outbox()] == [Version(1, 1)]
