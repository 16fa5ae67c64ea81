"""Real processes that are killed, stopped and started again, with replicas: nothing that was acknowledged is lost."""

import os
import signal
import threading
import time

import pytest
import torch

import gradtide
from gradtide.chaos.footprint import footprint
from gradtide.errors import ConfigError, RolledBack
from gradtide.events import Degraded
from store_processes import Killer, pid_of, wait_until

KEYS = [f"k{i}" for i in range(8)]
ONES = [torch.ones(3, dtype=torch.int64)] * len(KEYS)


@pytest.fixture
def pair(forks):
    with gradtide.local_servers(2, replicas=1, forks=forks) as started:
        yield started


def add_keys(store):
    store.init({key: torch.zeros(3, dtype=torch.int64) for key in KEYS}, update=gradtide.update("add"))


def total(store):
    (number,) = {int(x) for value in store.pull(KEYS) for x in value}
    return number


def is_whole(store):
    """Does every shard have a replica in sync?"""
    return all(store.table.backups)


@pytest.mark.quick
def test_a_push_acknowledged_before_the_kill_is_there_after_failover(pair):
    with gradtide.connect(pair.address) as store:
        add_keys(store)
        for kill in range(4):
            for _ in range(5):
                handle = store.push(KEYS, ONES)
                handle.wait()
                assert handle.report.replicated
            victim = pid_of(pair, f"server-{kill % 2}")
            os.kill(victim, signal.SIGKILL)
            store.push(KEYS, ONES).wait()
            assert total(store) == 6 * (kill + 1)
            pair.wait_until_healed(victim)
            wait_until(lambda: is_whole(store))


def test_an_optimizer_goes_on_on_the_replica_with_the_same_bits(pair):
    def train(store, key, kill):
        torch.manual_seed(3)
        store.init(key, torch.randn(3000), update=gradtide.update("adam", lr=0.1))
        killer = Killer(pair)
        for step in range(12):
            if kill and step in (4, 8):
                killer.kill(store, f"server-{step % 8 // 4}")
            store.push(key, torch.randn(3000)).wait()
        return store.pull(key)

    with gradtide.connect(pair.address) as store:
        assert torch.equal(train(store, "calm", kill=False), train(store, "disturbed", kill=True))


@pytest.mark.timing
def test_a_server_that_is_stopped_is_replaced_within_its_lease_and_no_stale_write_counts(pair):
    with gradtide.connect(pair.address) as store:
        add_keys(store)
        store.push(KEYS, ONES).wait()
        stopped = pid_of(pair, "server-0")
        os.kill(stopped, signal.SIGSTOP)
        try:
            begun_s = time.monotonic()
            late = [store.push(KEYS, ONES) for _ in range(3)]
            for handle in late:
                handle.wait(timeout_s=10)
            assert time.monotonic() - begun_s < 2.5
            assert total(store) == 4
        finally:
            os.kill(stopped, signal.SIGCONT)
        store.push(KEYS, ONES).wait()
        wait_until(lambda: is_whole(store))
        assert total(store) == 5
        os.kill(pid_of(pair, "server-1"), signal.SIGKILL)
        assert total(store) == 5, "what the stopped one had is not what was acknowledged"


def test_the_coordinator_is_killed_and_goes_on_from_its_journal(pair):
    with gradtide.connect(pair.address) as store:
        add_keys(store)
        for kill in range(5):
            victim = pid_of(pair, "coordinator")
            os.kill(victim, signal.SIGKILL)
            store.push(KEYS, ONES).wait(timeout_s=5)
            pair.wait_until_healed(victim)
            wait_until(lambda expected=kill + 2: store.table.term == expected)
            assert total(store) == kill + 1
        server = pid_of(pair, "server-1")
        os.kill(server, signal.SIGKILL)
        store.push(KEYS, ONES).wait(timeout_s=10)
        assert total(store) == 6


def test_without_a_replica_in_sync_a_push_is_only_applied_and_degraded_is_told(forks):
    heard = []
    with (
        gradtide.local_servers(2, replicas=1, forks=forks) as servers,
        gradtide.connect(servers.address, emit=heard.append) as store,
    ):
        add_keys(store)
        stopped = pid_of(servers, "server-1")
        os.kill(stopped, signal.SIGSTOP)
        try:
            handle = store.push(KEYS, ONES)
            handle.wait(timeout_s=10)
            wait_until(lambda: heard and heard[-1] == Degraded(1024))
            handle = store.push(KEYS, ONES)
            handle.wait()
            assert not handle.report.replicated
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: is_whole(store))
        wait_until(lambda: heard[-1].shards == 0)


def test_beyond_the_replicas_the_client_is_told_what_is_gone(pair):
    with gradtide.connect(pair.address) as store, gradtide.connect(pair.address) as other:
        add_keys(store)
        store.push(KEYS, ONES).wait()
        other.pull("k0")
        for name in ("server-0", "server-1"):
            os.kill(pid_of(pair, name), signal.SIGKILL)
        with pytest.raises(RolledBack, match=r"k0.*went back from version 1\.\d+ to nothing"):
            store.push(KEYS, ONES).wait(timeout_s=10)
        with pytest.raises(RolledBack, match="k0"):
            other.pull("k0")
        add_keys(store)
        store.push(KEYS, ONES).wait()
        assert total(store) == 1


def test_workers_in_rounds_go_on_from_the_same_round_with_the_same_bits(forks):
    def train(kills):
        with gradtide.local_servers(3, replicas=1, forks=forks) as servers:
            values, killer = [None, None], Killer(servers)

            def work(worker):
                generator = torch.Generator().manual_seed(worker)
                with gradtide.connect(servers.address, worker=worker, workers=2, consistency="bsp") as store:
                    store.init("w", torch.zeros(2000), update=gradtide.update("sgd", lr=0.1, momentum=0.9))
                    for step in range(30):
                        weights = store.pull("w")
                        gradient = torch.randn(2000, generator=generator) + weights
                        if worker == 0 and step in kills:
                            killer.kill(store, kills[step])
                        store.push("w", gradient).wait(timeout_s=100)
                    values[worker] = store.pull("w")

            threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return values

    calm = train({})
    assert torch.equal(calm[0], calm[1])
    disturbed = train({5: "coordinator", 10: "server-0", 18: "coordinator", 24: "server-1"})
    assert torch.equal(disturbed[0], calm[0])
    assert torch.equal(disturbed[1], calm[0])


def train_with_losses(forks, kills, steps):
    """A least-squares fit by two workers in bsp; kills the coordinator so often while they train."""
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers:
        losses = [[], []]

        def work(worker):
            generator = torch.Generator().manual_seed(worker)
            data, target = torch.randn(64, 20, generator=generator), torch.randn(64, generator=generator)
            with gradtide.connect(servers.address, worker=worker, workers=2, consistency="bsp") as store:
                store.init("w", torch.zeros(20), update=gradtide.update("adam", lr=0.01))
                for _ in range(steps):
                    error = data @ store.pull("w") - target
                    losses[worker].append(float((error**2).mean()))
                    store.push("w", data.T @ error / 64).wait(timeout_s=20)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            seen = len(losses[0])
            wait_until(lambda seen=seen: len(losses[0]) > seen)
            victim = pid_of(servers, "coordinator")
            os.kill(victim, signal.SIGKILL)
            servers.wait_until_healed(victim)
            assert threads[0].is_alive(), "it was killed while they trained"
        for thread in threads:
            thread.join()
        return losses


@pytest.mark.slow
def test_fifty_kills_of_the_coordinator_change_no_bit_of_the_losses(forks):
    disturbed = train_with_losses(forks, 50, 6000)
    calm = train_with_losses(forks, 0, 6000)
    assert disturbed == calm


def test_kills_leave_no_descriptor_open(forks):
    counts = []
    with gradtide.local_servers(3, replicas=1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        add_keys(store)
        for kill in range(6):
            wait_until(lambda: is_whole(store))
            spared = [pid_of(servers, name) for name in ("coordinator", "server-0")]
            wait_until(lambda spared=spared: descriptors_at_rest(spared))
            counts.append([footprint(pid).descriptors for pid in spared])
            victim = pid_of(servers, f"server-{1 + kill % 2}")
            os.kill(victim, signal.SIGKILL)
            servers.wait_until_healed(victim)
            store.push(KEYS, ONES).wait(timeout_s=10)
    assert {coordinator for coordinator, _ in counts[1:]} == {counts[0][0]}
    assert max(server for _, server in counts[3:]) <= max(server for _, server in counts[:3])


def descriptors_at_rest(pids):
    """Is nobody just coming or going? Then two looks see the same."""
    first = [footprint(pid).descriptors for pid in pids]
    time.sleep(0.1)
    return first == [footprint(pid).descriptors for pid in pids]


def test_more_replicas_than_other_servers_are_refused():
    with pytest.raises(ConfigError, match="2 replicas need 3 servers"):
        gradtide.local_servers(2, replicas=2)
