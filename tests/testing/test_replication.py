"""A store with replicas loses nothing when servers and coordinator die, hang and are cut off; four ways to break it."""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from gradtide.store.coordinator.membership import Membership
from gradtide.store.shard import filter as filters
from gradtide.store.shard import log, replication
from gradtide.store.wire.messages import Replicated
from gradtide.testing.simulate import replicated_scenario_of, run_seed
from gradtide.testing.simulator import processes
from loaded_python import loaded_python


@pytest.mark.parametrize("seeds", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_seeds_of_servers_and_coordinators_that_die_lose_nothing(seeds: int) -> None:
    """Two processes take half of them each."""
    program = [loaded_python(), "-m", "gradtide.testing.simulate", "--replicas", "--seeds", str(seeds // 2)]
    with ExitStack() as stack:
        halves = []
        for first in (0, seeds // 2):
            half = subprocess.Popen([*program, "--first", str(first)], stdout=subprocess.PIPE, text=True)
            halves.append(stack.enter_context(half))
            stack.callback(half.kill)
        said = [half.communicate(timeout=900)[0] for half in halves]
    assert said == [f"{seeds // 2} seeds from {first} on: every promise kept\n" for first in (0, seeds // 2)]


def test_the_same_seed_of_a_store_with_replicas_gives_the_same_history() -> None:
    seeds = range(0, 60, 3)
    assert [run_seed(s, replicas=True).digest for s in seeds] == [run_seed(s, replicas=True).digest for s in seeds]


def test_the_seeds_reach_every_kind_of_mishap() -> None:
    outcomes = [run_seed(seed, replicas=True) for seed in range(80)]
    happened = [fault for outcome in outcomes for fault in outcome.happened]
    servers = [fault for fault in happened if fault.who != "coordinator"]
    assert {fault.kind for fault in servers} == {"kill", "stop", "cut"}
    assert {fault.way for fault in servers if fault.kind == "cut"} == {"both", "to", "from"}
    killed = [fault for fault in happened if fault.who == "coordinator" and fault.kind == "kill"]
    assert {fault.disk for fault in killed} == {True, False}
    assert {replicated_scenario_of(seed).replicas for seed in range(80)} == {1, 2}
    wild = (run_seed(seed, replicas=True) for seed in range(2000) if replicated_scenario_of(seed).wild)
    assert any(o.refused == "rolled_back" for outcome in wild for o in outcome.history.operations)
    assert max(max(outcome.history.tables) for outcome in outcomes) > 6


# --- breaking the code on purpose ---


def skip_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica confirms what a primary of an earlier epoch says."""
    follow = replication.Replication._follow

    def confirm(self: Any, message: Any, values: Sequence[Any]) -> None:
        if message.epoch < self.epoch and message.shard >= 0:
            word = Replicated(message.epoch, self.name, message.shard, message.position, message.clock_s)
            self.outbox.append(replication.ToServer(message.server, word))
        else:
            follow(self, message, values)

    monkeypatch.setattr(replication.Replication, "_follow", confirm)


def acknowledge_before_replicating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log.Log, "is_confirmed", lambda self, number: True)


def forget_the_filter_on_promotion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters.Filter, "take_over", lambda self: self.records.clear())


def believe_a_server_instead_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that starts again takes the table of whoever is there."""
    actor = processes.CoordinatorActor

    class Credulous(actor):  # type: ignore[misc, valid-type]
        def __init__(self, world: Any, lease_s: float = 2.0, disk: Any = None) -> None:
            disk = disk or world.disk
            if disk.record is not None:
                tables = [a.host.table for a in world.hosts.values() if a.host.table is not None]
                believed = min(tables, key=lambda table: table.epoch, default=disk.record.table)
                disk.record = msgspec.structs.replace(disk.record, table=believed)
            super().__init__(world, lease_s, disk)

    monkeypatch.setattr("gradtide.testing.simulator.trouble.CoordinatorActor", Credulous)
    monkeypatch.setattr(Membership, "_knows_more", lambda self, peer: False)


@pytest.mark.parametrize(
    ("mutation", "promises"),
    [
        (skip_the_fence, {"exactly once", "fence", "reads own writes", "monotonic reads", "order", "bound"}),
        (acknowledge_before_replicating, {"exactly once", "reads own writes", "monotonic reads", "order", "bound"}),
        (forget_the_filter_on_promotion, {"exactly once"}),
        (believe_a_server_instead_of_the_journal, {"journal", "exactly once", "fence"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_checker_sees_what_was_broken_in_replication_on_purpose(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None], promises: set[str]
) -> None:
    mutation(monkeypatch)
    broken = (violation.promise for seed in range(400) for violation in run_seed(seed, replicas=True).violations)
    assert any(promise in promises for promise in broken)
