"""One training after another on the same servers: workers end the first, and come to the second, in any order."""

import threading
import time

import pytest
import torch

import gradtide
from gradtide import Servers
from gradtide.sync import Job

DATA = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]


def wrap(job, address, name, resume=False):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    return gradtide.DataParallel(net, rule, Servers("bsp", address, name=name, resume=resume), job=job)


def train(model, job, data=DATA):
    for x, y in gradtide.shard(data, job=job):
        torch.nn.functional.mse_loss(model(x), y).backward()
        model.step()


def has_come_again(model, worker):
    """Whether a worker that trains with this one is on the servers once more, as another client."""
    members = model._synchroniser.way.store.round_members
    return len({m.client for m in members if m.worker == worker} - model.seen) > 0


def in_threads(forks, body):
    """Runs body(rank, address) as two workers; returns what each returned."""
    found, failed = {}, []

    def run(rank, address):
        try:
            found[rank] = body(rank, address)
        except BaseException as error:
            failed.append(error)

    with gradtide.local_servers(1, forks=forks) as servers:
        threads = [threading.Thread(target=run, args=(rank, servers.address), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads), "a worker waits for ever"
    assert not failed, failed
    return found


@pytest.mark.parametrize(("slow", "resume"), [(0, False), (1, False), (1, True)])
def test_who_comes_to_the_next_training_waits_for_who_is_still_in_the_last(forks, slow, resume):
    jobs = [Job(rank, 2) for rank in range(2)]

    def body(rank, address):
        job = jobs[rank]
        model = wrap(job, address, "first")
        model.seen = {m.client for m in model._synchroniser.way.store.round_members}
        train(model, job)
        if rank == slow:  # the other one ends, and comes again, before this one ends
            store, looks = model._synchroniser.way.store, 0
            while not has_come_again(model, 1 - slow):
                time.sleep(0.01)
            while looks < 40 and (resume or not store.keys("second/first round")):
                looks += 1
                time.sleep(0.01)
            assert looks == 40, "worker 0 took a worker of the last training for one of the next"
        model.close()
        model = wrap(job, address, "first" if resume else "second", resume)
        steps = model._synchroniser.way.store.step
        train(model, job)
        model.close()
        return steps, job.behind, job.batches

    found = in_threads(forks, body)
    assert found[0] == found[1]
    assert found[0][1:] == (0, 4)
