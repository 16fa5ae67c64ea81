"""What happens in a store is told as events, of which the coordinator keeps the last."""

import os
import re
import signal
import time

import pytest

import gradtide
from gradtide.store.coordinator.chronicle import Chronicle
from gradtide.store.coordinator.membership import Membership
from gradtide.store.local.status import ask_status
from gradtide.store.wire.messages import Beat, Join, Leave
from store_processes import LONG_LEASE_S, wait_until_copied

LEASE_S = 2.0


class Store:
    """A coordinator without a shell, and its chronicle."""

    def __init__(self, servers, replicas):
        self.membership, self.chronicle, self.now_s = Membership(lease_s=LEASE_S), Chronicle(), 0.0
        for i in range(servers):
            self.hear(Join("server", f"s{i}", 0, f"host:{i}", expected=servers, replicas=replicas, token=i + 1))
        self.news = 0

    def hear(self, message):
        self.membership.hear(message, self.now_s)

    def look(self):
        """The new events, as (name, fields)."""
        membership = self.membership
        self.chronicle.look(membership.peers, membership.table, membership.decree, self.now_s)
        found = [(one.event, one.fields) for one in self.chronicle.told(self.now_s) if one.number > self.news]
        self.news += len(found)
        return found

    def kill(self, name):
        self.membership.lost(name, self.membership.peers[name].join.incarnation)


@pytest.mark.quick
def test_a_server_that_dies_is_lost_its_shards_fail_over_and_copies_are_short():
    store = Store(3, replicas=1)
    assert [name for name, _ in store.look()] == ["MemberCame"] * 3
    table = store.membership.table
    held = sum(table.servers[owner].name == "s1" for owner in table.owners)
    store.kill("s1")
    told = store.look()
    assert ("MemberLost", {"role": "server", "name": "s1"}) in told
    assert ("FailedOver", {"server": "s1", "shards": held}) in told
    assert ("ReplicasShort", {"shards": store.membership.table.short_of_copies}) in told
    assert store.chronicle.failures == {"server": 1}
    assert store.look() == []


@pytest.mark.quick
def test_one_that_is_started_again_before_anybody_looked_was_lost_all_the_same():
    store = Store(2, replicas=0)
    store.look()
    store.kill("s0")
    store.hear(Join("server", "s0", 0, "host:9", expected=2, token=77))
    told = [name for name, _ in store.look()]
    assert told.count("MemberLost") == 1
    assert told.count("MemberCame") == 1
    assert "FailedOver" not in told  # nobody had a copy
    assert "ShardsLost" in told


@pytest.mark.quick
def test_who_says_goodbye_is_not_a_failure_and_events_are_kept_up_to_a_number():
    store = Store(1, replicas=0)
    store.look()
    for i in range(200):
        store.hear(Join("worker", f"w{i}", 0, worker=i, token=1000 + i))
        store.look()
        incarnation = store.membership.peers[f"w{i}"].join.incarnation
        store.hear(Beat(f"w{i}", incarnation))
        store.hear(Leave(f"w{i}", incarnation))
        store.look()
    assert store.chronicle.failures == {}
    kept = store.chronicle.told(0.0)
    assert len(kept) == 128
    assert kept[-1].number - kept[0].number == 127


def test_a_killed_server_is_told_and_so_is_its_recovery(forks):
    with gradtide.local_servers(3, replicas=1, lease_s=LONG_LEASE_S, forks=forks) as servers:
        wait_until_copied(servers.address)
        for i in range(3):  # then the chronicle has seen the table, too
            wait_for(servers.address, f"MemberCame.*server-{i}")
        dead = next(process.pid for process in servers.processes if process.name == "server-1")
        os.kill(dead, signal.SIGKILL)
        wait_for(servers.address, "MemberLost.*server-1")
        wait_for(servers.address, "FailedOver.*server-1")
        wait_for(servers.address, r"ReplicasShort', {'shards': 0}")
        assert ask_status(servers.address).coordinator.failures == {"server": 1}


def wait_for(address, pattern, timeout_s=30):
    deadline_s = time.monotonic() + timeout_s
    while True:
        told = [(one.event, one.fields) for one in ask_status(address).coordinator.happened]
        if re.search(pattern, str(told)):
            return
        assert time.monotonic() < deadline_s, told
