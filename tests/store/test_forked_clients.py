"""A process that uses a store forks, as a DataLoader does for its workers."""

import os
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import gradtide
from gradtide.errors import Closed


def in_child(work):
    """What a forked process finds; it ends without any of this one's business."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def sockets():
    links = (
        os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")
    )
    return sorted(link for link in links if link.startswith("socket:"))


@pytest.mark.parametrize("use", ["push", "push_pull", "pull", "wait", "close"])
def test_a_forked_process_is_told_to_connect_again_and_the_parents_pushes_count(servers, use):
    before = sockets()
    with gradtide.connect(servers.address) as store:
        store.init("w", torch.zeros(3), update=gradtide.update("add"))
        store.push_pull("w", torch.ones(3))
        store.push_pull("w", torch.ones(3))
        handle = store.push("w", torch.ones(3))
        uses = {
            "push": lambda: store.push("w", torch.ones(3), wait=True),
            "push_pull": lambda: store.push_pull("w", torch.ones(3)),
            "pull": lambda: store.pull("w"),
            "wait": lambda: handle.wait(),
            "close": lambda: (store.close(), "closed")[1],
        }
        said = in_child(uses[use])
        assert said == "closed" if use == "close" else said.startswith("Closed: this process was forked"), said
        handle.wait()
        for _ in range(3):
            store.push("w", torch.ones(3), wait=True)
        assert store.push_pull("w", torch.ones(3)).tolist() == [7, 7, 7]
        opened = in_child(lambda: [link for link in sockets() if link not in before])
        assert opened == "[]"


def test_a_forked_process_may_connect_itself(servers):
    with gradtide.connect(servers.address) as store:
        store.init("v", torch.zeros(2), update=gradtide.update("add"))

        def push():
            with gradtide.connect(servers.address) as own:
                return own.push_pull("v", torch.ones(2)).tolist()

        assert in_child(push) == "[1.0, 1.0]"
        assert store.push_pull("v", torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("times", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_forks_while_other_threads_push_lose_nothing_and_hang_nobody(servers, times):
    with gradtide.connect(servers.address) as store:
        store.init({f"k{i}": torch.zeros(4) for i in range(4)}, update=gradtide.update("add"))
        over, counts = threading.Event(), [0] * 4

        def push(number):
            while not over.is_set():
                store.push(f"k{number}", torch.ones(4), wait=True)
                counts[number] += 1

        threads = [threading.Thread(target=push, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        said = [in_child(lambda: store.push("k0", torch.ones(4), wait=True)) for _ in range(times)]
        over.set()
        for thread in threads:
            thread.join()
        assert all(word.startswith("Closed: this process was forked") for word in said)
        assert [int(store.pull(f"k{i}")[0]) for i in range(4)] == counts


class _Samples(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return 8

    def __getitem__(self, index):
        try:
            self.store.pull("x")
        except Closed:
            return index
        return -1


def test_a_dataloaders_workers_do_no_harm(servers):
    with gradtide.connect(servers.address) as store:
        store.init("x", torch.zeros(1), update=gradtide.update("add"))
        seen = []
        for batch in DataLoader(_Samples(store), batch_size=2, num_workers=2, multiprocessing_context="fork"):
            seen += batch.tolist()
            store.push("x", torch.ones(1), wait=True)
        assert sorted(seen) == list(range(8))
        assert store.pull("x").tolist() == [4]
