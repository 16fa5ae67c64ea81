"""What a server takes from a new table, and what stays as it was."""

import pytest
from msgspec.structs import replace

from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.replication import Replication
from gradtide.store.wire.messages import ServerEntry, Table

pytestmark = pytest.mark.quick


def test_who_was_reported_to_have_caught_up_is_waited_for_though_the_coordinator_is_started_again() -> None:
    """Its report may be on its way: pushes that were acknowledged without the replica were lost when it took over."""
    servers = tuple(ServerEntry(f"s{i}", f"host{i}", 1) for i in range(2))
    table = Table(1, 3, servers, (0, 0), 1, ((), ()), ((1,), (1,)))
    replication = Replication("s0", 1, TorchArithmetic())
    replication.take_table(table, 0, {})
    replication.awaited["s1"] = frozenset({0, 1})
    replication.take_table(replace(table, term=2), 0, {})
    assert replication.awaited == {"s1": frozenset({0, 1})}
    replication.take_table(replace(table, term=2, epoch=4), 0, {})
    assert replication.awaited == {}
