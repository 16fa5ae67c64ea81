"""Nothing is lost, nothing counts twice: with integers and powers of two, what arrived and what is left are exact."""

import hashlib
import threading

import pytest
import torch
from proxy import Weather, behind_proxies
from safetensors.torch import load_file

import gradtide
from gradtide.store.client.engine import Engine
from gradtide.timeouts import Timeouts
from store_processes import LONG_LEASE_S, Killer

COUNT = 700
WEATHER = Weather(drop_answers=0.2, duplicate=0.1, delay=0.02, cut=0.004)
PATIENCE = Timeouts(resend_s=0.02, step_s=120)
KEYS = {"topk": "topk:0.03", "onebit": "onebit", "mean": "topk:0.05"}


def rule(key):
    return gradtide.update("mean" if key == "mean" else "add")


def gradient(worker, step):
    generator = torch.Generator().manual_seed(7919 * step + worker)
    return torch.randint(-40, 41, (COUNT,), generator=generator).double()


class Work:
    """Workers in rounds; the last of them leaves before the others end. Each counts a power of two."""

    def __init__(self, address, workers, steps, consistency="bsp", at=lambda store, step: None):
        self.address, self.workers, self.steps, self.at = address, workers, steps, at
        self.consistency, self.failed, self.given = consistency, [], {}
        self.pushed = {key: torch.zeros(COUNT, dtype=torch.float64) for key in KEYS}
        self.left, self.last = [], {}
        self.means, self.answers, self.lock = [], torch.zeros(COUNT, dtype=torch.float64), threading.Lock()

    def run(self):
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]
        return self

    def _work(self, worker):
        try:
            options = {"timeouts": PATIENCE, "consistency": self.consistency}
            with gradtide.connect(self.address, worker=worker, workers=self.workers, **options) as store:
                store.wait_for_members(self.workers, 60)
                store.begin_at(max(store.first_rounds.values()))
                for key, codec in KEYS.items():
                    start = torch.zeros(COUNT, dtype=torch.float64)
                    store.init(key, start, update=rule(key), compress=codec)
                if worker == 0:
                    store.add_residuals(self.given)
                self._steps(store, worker)
        except BaseException as error:
            self.failed.append(error)

    def _steps(self, store, worker):
        leaver, until = worker == self.workers - 1 and worker > 0, 0
        first = store.step
        for step in range(self.steps):
            if worker == 0:
                self.at(store, step)
            pulled = store.pull(list(KEYS))
            if worker == 0:
                self._note_mean(store, step, pulled)
            if leaver and step == self.steps // 2:
                until = store.announce_leave()
            weight, handles = 0.5 if worker < 2 else 1.0, []
            for key in KEYS:
                given = gradient(worker, step)
                handles.append(store.push(key, given, weight=weight))
                with self.lock:
                    self.pushed[key] += weight * given
            if until and first + step + 1 >= until:
                for handle in handles:
                    handle.wait()
                assert not store.residuals(), "who leaves takes nothing along"
                return
        for handle in handles:
            handle.wait()
        with self.lock:
            self.left.append(store.residuals())
            self.last[worker] = store.pull(list(KEYS))
            if worker == 0:
                self._note_mean(store, self.steps, self.last[worker])

    def _note_mean(self, store, step, pulled):
        """What servers gave back of a round, and what it was: somebody in no round sees the exact value. Nobody goes on
        before this worker does."""
        if step and self.consistency == "bsp":
            self.answers += pulled[2]
            with gradtide.connect(self.address, timeouts=PATIENCE) as visitor:
                self.means.append(visitor.pull("mean"))

    @property
    def remaining(self):
        """What all workers have left, together."""
        return {key: sum(left[key] for left in self.left if key in left) for key in KEYS}

    def check(self):
        """By somebody who is in no round: what is there, and what is left, is what was pushed."""
        with gradtide.connect(self.address) as store:
            for key in ("topk", "onebit"):
                left = sum(residuals.get(key, 0) for residuals in self.left)
                assert torch.equal(store.pull(key) + left, self.pushed[key]), key
                assert left.abs().sum() > 0
        values = list(self.last.values())
        assert all(torch.equal(a, b) for other in values for a, b in zip(values[0], other, strict=True))


def test_through_drops_duplicates_and_cuts_everything_counts_once_and_resends_are_the_same_bytes(
    forks, tmp_path, monkeypatch
):
    sent, again, send = {}, [], Engine._send

    def record(engine, instruction):
        if type(instruction.message).__name__ == "Push":
            name = engine.session.client, instruction.message.sequence, instruction.server.name
            digest = hashlib.blake2b(b"".join(instruction.values)).digest()
            if sent.setdefault(name, digest) != digest:
                raise AssertionError("another body")
            again.append(name)
        send(engine, instruction)

    monkeypatch.setattr(Engine, "_send", record)
    counts = behind_proxies(forks, tmp_path, WEATHER, lambda address: Work(address, 3, 12).run().check())
    assert len(again) > len(sent) + 5, "some were sent again"
    assert counts["dropped"] > 5
    assert counts["cut"] > 0


def disturb(servers, steps, every):
    """Kills one server after the other, and lets servers come and go."""

    killer = Killer(servers)

    def at(store, step):
        if step % every == 0 and 0 < step < steps - 5:
            if step // every % 3 == 0:
                killer.wait_until_whole(store)
                servers.scale(3 if len(store.table.servers) == 2 else 2)
            else:
                killer.kill(store, store.table.servers[step // every % 2].name)

    return at


def through_trouble(forks, steps, every, consistency):
    with gradtide.local_servers(2, replicas=1, lease_s=LONG_LEASE_S, forks=forks) as servers:
        Work(servers.address, 3, steps, consistency, disturb(servers, steps, every)).run().check()


@pytest.mark.parametrize("consistency", ["bsp", "bounded:2"])
def test_through_kills_and_moves_everything_counts_once(forks, consistency):
    through_trouble(forks, 22, 6, consistency)


@pytest.mark.parametrize("rule", ["add", "sgd"])
def test_outside_of_rounds_pushes_of_any_weight_count_what_they_count_uncompressed(forks, rule):
    """In sums a weight multiplies; each push that is a step of its own is one, whatever it weighs."""
    options = {"lr": 1.0} if rule == "sgd" else {}
    made = {"update": gradtide.update(rule, **options), "consistency": "async"}
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init("dense", torch.zeros(300), **made)
        store.init("small", torch.zeros(300), compress="topk:0.1", **made)
        for step, weight in enumerate([1.0, 0.5, 2.0, -1.0, 0.0, 4.0]):
            store.push("dense", gradient(0, step)[:300].float(), weight=weight).wait()
            store.push("small", gradient(0, step)[:300].float(), weight=weight).wait()
        left = store.residuals()["small"]
        assert left.any()
        assert torch.equal(store.pull("small") + (left if rule == "add" else -left), store.pull("dense"))


def residual_of_servers(folder):
    """Of the key whose rounds are averages, from the files of a checkpoint."""
    found = {}
    for path in folder.rglob("*.safetensors"):
        found |= load_file(path)
    return found["mean[0].published residual"]


def test_a_checkpoint_keeps_what_servers_left_out_and_another_number_of_workers_the_sum_of_theirs(forks, tmp_path):
    with gradtide.local_servers(2, forks=forks, checkpoints=tmp_path) as servers:
        before = Work(servers.address, 3, 12).run()
        with gradtide.connect(servers.address) as store:
            taken = store.checkpoint(tmp_path)
    left = residual_of_servers(tmp_path)
    assert left.abs().sum() > 0
    counted = sum(before.means, torch.zeros_like(left))
    assert torch.equal(before.answers + left, counted)
    with gradtide.local_servers(1, forks=forks, restore=taken.address) as servers:
        after = Work(servers.address, 2, 10)
        after.given = before.remaining
        after.pushed = {key: value.clone() for key, value in before.pushed.items()}
        after.run().check()


@pytest.mark.slow
def test_ten_thousand_pushes_through_kills_and_moves_count_once(forks):
    through_trouble(forks, 1200, 60, "bsp")
