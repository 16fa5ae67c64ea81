"""Checkpoints of a store in real processes: taken under load, under fire and on full disks; and begun with."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

import gradtide
from gradtide.checkpoint.manifest import read_manifest, verify
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.shelf import Shelf
from gradtide.errors import Closed, ConfigError, DataError, GradtideError, RolledBack, StoreError
from gradtide.store.coordinator.coordinator import Coordinator
from gradtide.store.local.status import ask_status
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.export import collect_values
from gradtide.store.snapshot.shard_file import read_shards
from gradtide.transport.authenticate import parse_address
from gradtide.transport.keys import Credentials
from store_processes import pid_of

KEYS = [f"k{i}" for i in range(8)]


def workers_of(stack, servers, count=2):
    """So many workers in the rounds; they join at the same time, as the first round waits for all."""
    made = [None] * count

    def join(worker):
        made[worker] = gradtide.connect(servers.address, worker=worker, workers=count, consistency="bsp")

    threads = [threading.Thread(target=join, args=(worker,)) for worker in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [stack.enter_context(store) for store in made]


def train(stores, steps):
    """Adam over two keys, one of three blocks; returns what is there in the end."""
    names = {"large": 2_200_000, "small": 11}
    for step in steps:
        handles = []
        for worker, store in enumerate(stores):
            generator = torch.Generator().manual_seed(1000 * step + worker)
            handles.append(store.push({n: torch.randn(s, generator=generator) for n, s in names.items()}))
        for handle in handles:
            handle.wait()
    return stores[0].pull(list(names))


def begin(stores):
    for name, size in (("large", 2_200_000), ("small", 11)):
        value = torch.randn(size, generator=torch.Generator().manual_seed(size))
        stores[0].init(name, value, update=gradtide.update("adam", lr=0.05))


def test_three_then_five_then_two_servers_go_on_bit_for_bit(forks, tmp_path):
    with gradtide.local_servers(3, forks=forks) as servers, contextlib.ExitStack() as stack:
        stores = workers_of(stack, servers)
        begin(stores)
        train(stores, range(3))
        assert stores[0].checkpoint(tmp_path).manifest.round == 3
        expected = train(stores, range(3, 9))
    for count, steps, replicas in ((5, range(3, 6), 0), (2, range(6, 9), 1)):
        with (
            gradtide.local_servers(count, forks=forks, restore=tmp_path, replicas=replicas) as servers,
            contextlib.ExitStack() as stack,
        ):
            stores = workers_of(stack, servers)
            assert stores[0].step == steps[0] + 1
            found = train(stores, steps)
            stores[0].checkpoint(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    verify(open_place(Shelf(tmp_path).newest().address))


def test_checkpoints_under_load_are_one_cut_and_nobody_stops(forks, tmp_path):
    """Two workers add one in every round: a checkpoint of round r holds 2r everywhere."""
    over = threading.Event()
    with gradtide.local_servers(3, forks=forks) as servers, contextlib.ExitStack() as stack:
        stores = workers_of(stack, servers)
        stores[0].init({key: torch.zeros(100_000) for key in KEYS}, update=gradtide.update("add"))
        ones = {key: torch.ones(100_000) for key in KEYS}
        handles, rounds = [], [0, 0]

        def work(worker):
            """Until the store is closed: the visitor's last cut is of a round that both have yet to push."""
            with contextlib.suppress(Closed):
                while True:
                    stores[worker].push(ones).wait()
                    rounds[worker] += 1
                    if worker == 0 and rounds[0] % 5 == 0 and len(handles) < 4 and all(each.done() for each in handles):
                        with contextlib.suppress(StoreError):  # while the visitor's is being taken
                            handles.append(stores[0].checkpoint(tmp_path / "worker", wait=False))
                        if len(handles) == 4:
                            over.set()

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        with gradtide.connect(servers.address) as visitor:
            while not over.is_set():
                with contextlib.suppress(StoreError):  # while the worker's own is being taken
                    visitor.checkpoint(tmp_path / "visitor", timeout_s=30)
        for store in stores:
            store.close()
        for thread in threads:
            thread.join(60)
        for handle in handles[:-1]:
            handle.result()
    assert len(Shelf(tmp_path / "worker").complete()) >= 3
    for taken in (*Shelf(tmp_path / "worker").complete(), *Shelf(tmp_path / "visitor").complete()):
        values = collect_values(open_place(taken.address), taken.manifest)
        assert {float(v) for key in KEYS for v in values[key].unique()} == {2.0 * taken.manifest.round}
        assert {entry.round for entry in taken.manifest.shards} == {taken.manifest.round}


def test_outside_of_rounds_each_shard_is_exact_with_its_filter(forks, tmp_path):
    with gradtide.local_servers(2, forks=forks) as servers, contextlib.ExitStack() as stack:
        stores = [stack.enter_context(gradtide.connect(servers.address)) for _ in range(2)]
        stores[0].init({key: torch.zeros(4) for key in KEYS}, update=gradtide.update("add"))

        def work(store):
            for _ in range(120):
                store.push(KEYS, [torch.ones(4)] * len(KEYS)).wait()

        threads = [threading.Thread(target=work, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        with gradtide.connect(servers.address) as visitor:
            taken = [visitor.checkpoint(tmp_path) for _ in range(3)]
        for thread in threads:
            thread.join()
    for each in taken:
        for word, values in read_shards(open_place(each.address), each.manifest):
            counted = sum(len(record.answers) for record in word.records)
            assert all(value.tolist() == [counted] * 4 for value in values)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_fails_the_checkpoint_alone_and_is_named(forks, small_disk):
    with gradtide.local_servers(2, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init({key: torch.zeros(10_000) for key in KEYS}, update=gradtide.update("add"))
        first = store.checkpoint(small_disk)
        store.init("large", torch.zeros(1_000_000))
        with pytest.raises(StoreError, match=r"checkpoint failed on server-\d: .*: No space left on device"):
            store.checkpoint(small_disk)
        assert Shelf(small_disk).newest() == first
        store.push(KEYS, [torch.ones(10_000)] * 8).wait()  # the job goes on
        subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
        assert verify(open_place(store.checkpoint(small_disk).address)).size_bytes > 4_000_000


def wait_until_whole(servers, epoch):
    """Until a later table than this has every replica in sync, as the coordinator says: a client may not know yet."""
    deadline_s = time.monotonic() + 30
    while not ((table := ask_status(servers.address).coordinator.table).epoch > epoch and all(table.backups)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def kill_during_checkpoints(forks, path, kills):
    """A server is killed at a random moment of each; returns how many were complete."""
    rng, complete = random.Random(5), 0
    with (
        gradtide.local_servers(3, replicas=1, forks=forks) as servers,
        gradtide.connect(servers.address, timeouts=gradtide.Timeouts(resend_s=0.1)) as store,
    ):
        store.init({key: torch.zeros(50_000) for key in KEYS}, update=gradtide.update("add"))
        began_s = time.monotonic()
        store.checkpoint(path)
        took_s = time.monotonic() - began_s
        for kill in range(kills):
            store.push(KEYS, [torch.ones(50_000)] * len(KEYS)).wait()
            epoch = ask_status(servers.address).coordinator.table.epoch
            victim = pid_of(servers, f"server-{rng.randrange(3)}")
            timer = threading.Timer(rng.uniform(0, 1.5 * took_s), os.kill, (victim, signal.SIGKILL))
            timer.start()
            with contextlib.suppress(GradtideError):
                store.checkpoint(path, keep=2, timeout_s=30)
                complete += 1
            timer.join()
            newest = Shelf(path).newest()
            values = collect_values(open_place(newest.address), verify(open_place(newest.address)))
            assert sorted(values) == KEYS
            assert {float(v) for key in KEYS for v in values[key].unique()} <= {float(n) for n in range(kill + 2)}
            servers.wait_until_healed(victim)
            wait_until_whole(servers, epoch)
        assert {float(v) for v in store.pull("k0").unique()} == {float(kills)}
    return complete


def test_servers_killed_while_they_write_leave_the_newest_whole(forks, tmp_path):
    kill_during_checkpoints(forks, tmp_path, 6)


@pytest.mark.slow
def test_servers_killed_two_hundred_times_while_they_write_leave_the_newest_whole(forks, tmp_path):
    complete = kill_during_checkpoints(forks, tmp_path, 200)
    print(f"{complete} of 200 checkpoints were complete")
    assert 0 < complete < 200


@pytest.mark.parametrize("policy", ["rewind", "continue"])
def test_what_is_lost_comes_back_from_the_last_checkpoint(forks, tmp_path, policy):
    with (
        gradtide.local_servers(2, forks=forks, checkpoints=tmp_path, after_loss=policy) as servers,
        gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp") as store,
    ):
        store.init({key: torch.zeros(3) for key in KEYS}, update=gradtide.update("add"))
        for _ in range(5):
            store.push(KEYS, [torch.ones(3)] * 8).wait()
        taken = store.checkpoint(tmp_path)
        for _ in range(3):
            store.push(KEYS, [torch.ones(3)] * 8).wait()
        assert store.pull("k0").tolist() == [8, 8, 8]
        os.kill(pid_of(servers, "server-0"), signal.SIGKILL)
        with pytest.raises(RolledBack, match="step-00000005") as told:
            store.push(KEYS, [torch.ones(3)] * 8).wait()
        if policy == "rewind":
            assert "call store.rewind() and go on with step 6" in str(told.value)
            with pytest.raises(RolledBack):  # until it is taken note of
                store.pull("k0")
            rewound = store.rewind()
            assert (rewound.folder, rewound.round, store.step) == (taken.address, 5, 6)
            assert {float(v) for value in store.pull(KEYS) for v in value} == {5.0}
        else:
            assert store.rewind() is None
            assert {float(v) for value in store.pull(KEYS) for v in value} in ({5.0, 8.0}, {5.0, 9.0})
        before = store.pull(KEYS)
        store.push(KEYS, [torch.ones(3)] * 8).wait()
        assert all(torch.equal(new, old + 1) for new, old in zip(store.pull(KEYS), before, strict=True))


def test_a_checkpoint_stays_whatever_becomes_of_the_old_ones(forks, tmp_path):
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init("w", torch.ones(10))
        first = store.checkpoint(tmp_path)
        (Path(first.address) / "manifest.json").write_text("flipped")
        with pytest.warns(UserWarning, match=first.address):
            second = store.checkpoint(tmp_path, keep=1)
    assert Shelf(tmp_path).newest() == second


def test_mistakes_are_one_clear_line_and_nothing_is_started(forks, tmp_path):
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init("w", torch.ones(10))
        taken = store.checkpoint(tmp_path / "good")
        with pytest.raises(ConfigError, match="keep=0 would leave no checkpoint"):
            store.checkpoint(tmp_path, keep=0)
        with pytest.raises(GradtideError, match=r"can't be written"):
            store.checkpoint("/proc/nowhere")
        with pytest.raises(DataError, match="does everybody who writes a checkpoint see the same memory://"):
            store.checkpoint("memory://here")  # the server's memory is another
    for arguments, message in (
        ({"restore": tmp_path}, "is no checkpoint and has none in it"),
        ({"after_loss": "rewind"}, "needs checkpoints= to go back to"),
        ({"after_loss": "pray"}, "say 'empty', 'rewind' or 'continue'"),
    ):
        with pytest.raises(GradtideError, match=message):
            gradtide.local_servers(1, forks=forks, **arguments)
    (file,) = taken.manifest.files
    path = os.path.join(taken.address, file.name)
    with open(path, "r+b") as damaged:
        damaged.seek(file.size_bytes - 9)
        damaged.write(b"?")
    with pytest.raises(DataError, match=f"{file.name} is damaged"):
        gradtide.local_servers(1, forks=forks, restore=taken.address)


def test_a_store_in_one_process_writes_to_memory(tmp_path):
    address = f"unix:{tmp_path}/c"
    processes = [Coordinator(parse_address(address))]
    for i in range(2):
        host = ShardSet(f"s{i}", 1, f"unix:{tmp_path}/s{i}", TorchArithmetic(), 2)
        processes.append(Server(host, parse_address(host.address), Uplink(parse_address(address), Credentials())))
    threads = [threading.Thread(target=process.run) for process in processes]
    for thread in threads:
        thread.start()
    try:
        with gradtide.connect(address) as store:
            store.init({"a": torch.arange(5), "b": torch.ones(2, 3)})
            taken = store.checkpoint(f"memory://shelf-{os.urandom(3).hex()}")
        values = collect_values(open_place(taken.address), read_manifest(open_place(taken.address)))
        assert torch.equal(values["a"], torch.arange(5))
        assert values["b"].shape == (2, 3)
    finally:
        for process in processes:
            process.stop()
        for thread in threads:
            thread.join()
