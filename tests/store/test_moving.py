"""Who gets which shard when servers come and go: the coordinator alone, told that every copy has caught up."""

from collections import Counter

import pytest

from gradtide.store.coordinator.membership import Membership
from gradtide.store.coordinator.shard_moves import is_settled
from gradtide.store.wire.messages import Beat, CaughtUp, Join, Leave, Table
from gradtide.store.wire.placement import SHARDS, shard_of

pytestmark = pytest.mark.quick


class Driven:
    """A coordinator whose servers live, and copy in no time."""

    def __init__(self, servers: int, replicas: int = 0, address: str = "") -> None:
        self.membership, self.now_s, self.tables = Membership(), 0.0, list[Table]()
        for i in range(servers):
            self.join(f"s{i}", servers, replicas, address)

    @property
    def table(self) -> Table:
        assert self.membership.table is not None
        return self.membership.table

    def join(self, name: str, expected: int = 1, replicas: int = 0, address: str = "", incarnation: int = 1) -> None:
        where = address.format(name) or name
        self.membership.hear(Join("server", name, incarnation, where, expected=expected, replicas=replicas), self.now_s)

    def settle(self) -> None:
        for _ in range(200):
            self.now_s += 0.3
            for entry in self.table.servers:
                self.membership.hear(Beat(entry.name, entry.incarnation), self.now_s)
            self.membership.tick(self.now_s)
            self.tables.append(self.table)
            if any(self.table.joining):
                self.catch_up()
            elif is_settled(self.table, frozenset(s.name for s in self.table.servers)) and not self.unsettled():
                return
        raise AssertionError("it never settles")

    def unsettled(self) -> bool:
        return len(self.tables) < 4 or len({table.epoch for table in self.tables[-4:]}) > 1

    def catch_up(self) -> None:
        wanted: dict[tuple[int, int], list[int]] = {}
        for shard, (owner, joining) in enumerate(zip(self.table.owners, self.table.joining, strict=True)):
            for i in joining:
                wanted.setdefault((owner, i), []).append(shard)
        (owner, replica), shards = next(iter(wanted.items()))
        servers, epoch = self.table.servers, self.table.epoch
        word = CaughtUp(servers[owner].name, servers[owner].incarnation, epoch, servers[replica].name, tuple(shards))
        self.membership.hear(word, self.now_s)

    def holders(self) -> list[frozenset[str]]:
        backups = self.table.backups or ((),) * SHARDS
        names = [server.name for server in self.table.servers]
        pairs = zip(self.table.owners, backups, strict=True)
        return [frozenset(names[i] for i in (owner, *others)) for owner, others in pairs]


def load(holders: list[frozenset[str]]) -> Counter[str]:
    return Counter(name for some in holders for name in some)


def spread(counts: Counter[str]) -> int:
    return max(counts.values()) - min(counts.values())


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 8, 15])
def test_a_new_server_moves_only_its_own_share(servers: int) -> None:
    driven = Driven(servers)
    before = driven.holders()
    driven.join("new")
    driven.settle()
    after = driven.holders()
    moved = [now for then, now in zip(before, after, strict=True) if then != now]
    assert set(moved) == {frozenset({"new"})}
    assert len(moved) <= SHARDS // (servers + 1) + 1
    assert spread(load(after)) <= 1


@pytest.mark.parametrize("servers", [2, 3, 5, 16])
def test_a_server_that_leaves_moves_only_what_it_held(servers: int) -> None:
    driven = Driven(servers)
    before = driven.holders()
    driven.membership.hear(Leave("s0", 1), 0.0)
    assert driven.table.leaving == (0,)
    driven.settle()
    after = driven.holders()
    assert all(then == now for then, now in zip(before, after, strict=True) if then != {"s0"})
    assert "s0" not in load(after)
    assert spread(load(after)) <= 1
    assert [server.name for server in driven.table.servers] == [f"s{i}" for i in range(1, servers)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_with_replicas_no_shard_is_ever_short_of_a_copy(replicas: int) -> None:
    driven = Driven(replicas + 1, replicas)
    driven.settle()
    driven.join("new")
    driven.join("newer")
    driven.settle()
    driven.membership.hear(Leave("s0", 1), driven.now_s)
    driven.settle()
    assert all(len(backups) >= replicas for table in driven.tables for backups in table.backups)
    assert all(len(some) == replicas + 1 for some in driven.holders())
    assert spread(load(driven.holders())) <= SHARDS // 16
    assert spread(Counter(map(str, driven.table.owners))) <= SHARDS // 16


def test_copies_stay_on_different_machines() -> None:
    driven = Driven(2, 1, "tcp:10.0.0.{}:7000")
    driven.join("third", address="tcp:10.0.0.s0:7001")
    driven.settle()
    where = {server.name: server.address.rpartition(":")[0] for server in driven.table.servers}
    assert all(len({where[name] for name in some}) == 2 for some in driven.holders())
    assert load(driven.holders())["third"] > 300


def test_many_changes_stay_even_and_keep_the_blocks_of_a_key_apart() -> None:
    driven = Driven(3)
    for i in range(3, 8):
        driven.join(f"s{i}")
        driven.settle()
    for i in (0, 7, 2):
        driven.membership.hear(Leave(f"s{i}", 1), driven.now_s)
        driven.settle()
    assert spread(load(driven.holders())) <= 1
    held = Counter(driven.table.owners[shard_of("w", block)] for block in range(50))
    assert max(held.values()) <= 16, "of 50 blocks on 5 servers"


def test_a_server_that_was_started_again_has_not_been_asked_to_go() -> None:
    driven = Driven(2)
    driven.membership.hear(Leave("s1", 1), 0.0)
    assert driven.membership.leaving == {"s1"}
    driven.membership.lost("s1", 1)
    driven.join("s1", incarnation=2)
    assert driven.membership.leaving == frozenset()
    driven.settle()
    assert len(driven.table.servers) == 2


def test_a_coordinator_that_starts_again_goes_on_emptying() -> None:
    driven = Driven(3)
    driven.membership.hear(Leave("s1", 1), 0.0)
    record = driven.membership.take_unwritten()
    assert record is not None
    driven.membership = Membership.restore(record, driven.now_s)
    assert driven.membership.leaving == {"s1"}
    driven.settle()
    assert [server.name for server in driven.table.servers] == ["s0", "s2"]


def test_the_dead_are_let_go_first() -> None:
    driven = Driven(3)
    driven.membership.lost("s0", 1)
    answer, _ = driven.membership.resize(2)
    assert (answer.staying, answer.leaving) == (("s1", "s2"), ("s0",))
    answer, _ = driven.membership.resize(3)
    assert answer.leaving == ()
    assert driven.membership.leaving == frozenset(), "somebody has thought better of it"
