"""Local steps over servers: what stays as it was, who begins where, who takes how many steps."""

import copy
import os
import signal
import threading

import pytest
import torch
from local_threads import advance, alike, at, batch, build, close, in_threads, sgd, values
from torch import nn
from torch.nn import functional

import gradtide
from gradtide import Servers
from gradtide.errors import ConfigError, RolledBack
from gradtide.sync import Job, Local
from gradtide.sync.local.pace import Pace, steps_beside
from store_processes import pid_of

LEAST = torch.finfo(torch.float32).min
NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("least", torch.full((3,), LEAST))
        self.register_buffer("hidden", torch.full((3,), -torch.inf))
        self.register_buffer("constant", torch.tensor([0.1, 1 / 3]))
        self.register_buffer("turns", torch.tensor(7))
        self.register_buffer("shown", torch.tensor([True, False]))
        self.register_buffer("phase", torch.tensor([1 + 2j, -1j]))

    def forward(self, x):
        if self.training:
            self.turns.copy_((self.turns + 1) % 9)  # less than it was, now and then
        return self.last(torch.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("mode", ["bsp", "async"])
def test_masks_and_constants_stay_what_they_are_where_workers_meet(stores, mode):
    over = at(stores, mode)

    def work(rank):
        torch.manual_seed(rank)
        net = Masked()
        model = gradtide.DataParallel(
            net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2, over=over), job=Job(rank, 2)
        )
        seen = []
        for step in range(4):
            model.weigh(0 if rank and step > 1 else 4)  # in the second window one has seen nothing
            model(batch(rank, step).float()).square().mean().backward()
            seen.append((net.norm.running_mean.clone(), int(net.turns)))
            model.step()
        model.close()
        return dict(net.named_buffers()), seen

    found = in_threads(2, work)
    for buffers, _ in found:
        assert torch.equal(buffers["least"], torch.full((3,), LEAST))
        assert torch.equal(buffers["hidden"], torch.full((3,), -torch.inf))
        assert torch.equal(buffers["constant"], torch.tensor([0.1, 1 / 3]))
        assert torch.equal(buffers["shown"], torch.tensor([True, False]))
        assert torch.equal(buffers["phase"], torch.tensor([1 + 2j, -1j]))
    if mode == "bsp":
        (one, seen), (other, _) = found
        assert alike(one.values(), other.values())
        assert torch.equal(one["norm.running_mean"], seen[-1][0])  # the other's statistics are of nothing
        assert int(one["norm.num_batches_tracked"]) == 4
        assert int(one["turns"]) == seen[-1][1] == 2


def test_running_statistics_are_averaged_by_samples(stores):
    over, samples = at(stores), [3.0, 5.0]

    def work(rank):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
        model = gradtide.DataParallel(
            net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2, over=over), job=Job(rank, 2)
        )
        model.weigh(samples[rank])
        model(batch(rank, 0)).square().mean().backward()
        model.step()
        own = net[1].running_mean.clone()
        model.meet()
        model.close()
        return own, net[1].running_mean

    (one, mean), (other, same) = in_threads(2, work)
    assert torch.equal(mean, same)
    assert torch.allclose(mean, (3 * one + 5 * other) / 8, rtol=0, atol=1e-15)


class Chain(nn.ModuleDict):
    """Tied, frozen, and in no optimizer."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__({name: nn.Linear(3, 3).double() for name in ("first", "tied", "frozen", "foreign")})
        self["tied"].weight = self["first"].weight
        self["frozen"].requires_grad_(False)
        stepped = [*self["first"].parameters(), self["tied"].bias, *self["frozen"].parameters()]
        self.rule = torch.optim.SGD(stepped, lr=0.1, momentum=0.9)

    def forward(self, x):
        for layer in self.values():
            x = torch.tanh(layer(x))
        return x

    def train_on(self, model, finish):
        for step in range(9):
            if step in (4, 7):
                self["first"].requires_grad_(step == 7)
            model(batch(0, step)).square().mean().backward()
            finish()
            self.zero_grad()


def test_frozen_tied_and_foreign_parameters_are_as_they_were(stores):
    """One worker by itself, averaged: plain PyTorch."""
    wanted, net, over = Chain(), Chain(), at(stores)
    wanted.train_on(wanted, wanted.rule.step)
    model = gradtide.DataParallel(net, net.rule, Local(3, over=over), job=Job())
    net.train_on(model, model.step)
    named = model._synchroniser.way.store.keys(f"{over.name}/")
    model.close()
    assert sum(key.endswith(("/first.weight", "/tied.weight")) for key in named) == 1
    assert close(net, wanted)


def test_what_was_changed_while_it_was_frozen_is_refused(stores):
    net = build()
    model = gradtide.DataParallel(net, sgd(net), Local(3, over=at(stores)), job=Job())
    advance(model, 0, 1)
    net[0].requires_grad_(False)
    advance(model, 0, 1, 1)
    net[0].weight.data.add_(1)
    net[0].requires_grad_(True)
    with pytest.raises(ConfigError, match=r"0\.weight was changed while it was frozen"):
        advance(model, 0, 1, 2)
    model._synchroniser.close()


def test_steps_that_are_taken_together_come_first(stores):
    over, steps = at(stores), []

    def work(rank):
        net = build(rank)
        model = gradtide.DataParallel(net, sgd(net), Local(3, over=over, after=4), job=Job(rank, 2))
        seen = []
        for step in range(8):
            model(batch(rank, step)).square().mean().backward()
            model.step()
            seen.append(values(net))
        steps.append(model.explain())
        model.close()
        return seen

    one, other = in_threads(2, work)
    assert [alike(a, b) for a, b in zip(one, other, strict=True)] == [True] * 4 + [False, False, True, False]
    net = build()
    rule = sgd(net)
    for step in range(4):
        rule.zero_grad()
        sum(net(batch(rank, step)).square().mean() / 2 for rank in range(2)).backward()
        rule.step()
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one[3], net.parameters(), strict=True))
    copies = [(copy.deepcopy(net), copy.deepcopy(rule.state_dict())) for _ in range(2)]
    for rank, (own, state) in enumerate(copies):
        own_rule = sgd(own)
        own_rule.load_state_dict(state)
        for step in range(4, 7):
            own_rule.zero_grad()
            own(batch(rank, step)).square().mean().backward()
            own_rule.step()
    means = [(a + b) / 2 for a, b in zip(*(own.parameters() for own, _ in copies), strict=True)]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one[6], means, strict=True))
    assert all("every 3 steps the servers at" in text for text in steps)


def test_loops_of_different_lengths_in_join(stores):
    """Who ends first gives what it has; the other goes on."""
    over = at(stores)

    def work(rank):
        net = build(rank)
        model = gradtide.DataParallel(
            net, torch.optim.SGD(net.parameters(), lr=0.1), Local(3, over=over), job=Job(rank, 2)
        )
        with model.join():
            advance(model, rank, 4 + 4 * rank)
        model.close()
        return values(net)

    for found in in_threads(2, work):
        assert isinstance(found, list), found


def test_any_optimizer_works_inside(stores):
    """LBFGS, which looks at the loss many times a step: each sample counts once."""
    nets, counted = [build(), build()], []
    rules = [torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe") for net in nets]
    model = gradtide.DataParallel(nets[1], rules[1], Local(2, over=at(stores)), job=Job())
    for step in range(5):
        for forward, rule in ((nets[0], rules[0]), (model, rules[1])):

            def closure(forward=forward, rule=rule, step=step):
                rule.zero_grad()
                loss = (forward(batch(0, step, 8)) - 1).square().mean()
                loss.backward()
                return loss

            rule.step(closure)
        counted.append(model._synchroniser.way._samples)
    assert counted == [1, 0, 1, 0, 1]
    with pytest.raises(ConfigError, match=r"call optimizer\.step\(closure\)"):
        model.step()
    model.close()
    assert close(*nets, 1e-9)


def test_norm_clipping_is_of_a_workers_own_gradient(stores):
    nets = [build(), build()]
    rule = sgd(nets[0])
    model = gradtide.DataParallel(nets[1], sgd(nets[1]), Local(3, over=at(stores)), clip_norm=0.01, job=Job())
    for step in range(6):
        rule.zero_grad()
        nets[0](batch(0, step)).square().mean().backward()
        nn.utils.clip_grad_norm_(nets[0].parameters(), 0.01)
        rule.step()
    advance(model, 0, 6)
    model.close()
    assert close(*nets)


# --- losses ---


def test_after_a_loss_beyond_the_replicas_workers_begin_with_the_base_that_is_there(forks, tmp_path):
    net = build()
    with gradtide.local_servers(1, forks=forks, checkpoints=tmp_path, after_loss="rewind") as servers:
        local = Local(2, NESTEROV, over=Servers("bsp", servers.address))
        model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), local, job=Job())
        store = model._synchroniser.way.store
        advance(model, 0, 4)
        kept = values(net)
        store.checkpoint(tmp_path)
        advance(model, 0, 3, 4)
        victim = pid_of(servers, "server-0")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RolledBack):
            advance(model, 0, 1, 7)
        store.rewind()
        model._synchroniser.begin_again()
        assert alike(values(net), kept)
        advance(model, 0, 4, 4)
        model.close()
    calm = build()
    with gradtide.local_servers(1, forks=forks) as servers:
        local = Local(2, NESTEROV, over=Servers("bsp", servers.address))
        model = gradtide.DataParallel(calm, torch.optim.SGD(calm.parameters(), lr=0.1), local, job=Job())
        advance(model, 0, 8)
        model.close()
    assert alike(values(net), values(calm))


# --- how many steps ---


def test_a_pace_is_the_median_of_the_steps_and_knows_nothing_of_meetings():
    times = iter([0.0, 1.0, 2.0, 12.0, 13.0, 100.0, 102.0])
    pace = Pace(lambda: next(times))
    assert pace.speed == 0.0
    for _ in range(4):  # an evaluation is between two of them
        pace.stepped()
    assert pace.speed == 1.0
    pace.begin()
    pace.stepped()
    assert pace.speed == 0.5


@pytest.mark.parametrize(
    ("every", "own", "fastest", "steps"),
    [(100, 10.0, 10.0, 100), (100, 3.1, 10.0, 31), (100, 0.001, 10.0, 1), (100, 0.0, 0.0, 100), (3, 5.0, 10.0, 2)],
)
def test_slow_workers_take_fewer_steps(every, own, fastest, steps):
    assert steps_beside(every, own, fastest) == steps


def test_windows_follow_the_fastest_worker_that_is_there(stores, monkeypatch):
    """Speeds are said here, not measured: 1 step a second, 4 on another worker, and 8 on one that has gone."""
    speeds = {0: 1.0, 1: 4.0, 2: 8.0}
    monkeypatch.setattr(Pace, "speed", property(lambda pace: speeds[pace.rank]))
    over = at(stores, "async")
    models = in_threads(
        3, lambda rank: gradtide.DataParallel(n := build(), sgd(n), Local(8, over=over, adapt=True), job=Job(rank, 3))
    )
    for rank, model in enumerate(models):
        model._synchroniser.way._pace.rank = rank
    for rank in (2, 1):
        advance(models[rank], rank, 8)
    advance(models[0], 0, 8)
    assert models[0]._synchroniser.way._window == 1
    assert "every 1 steps (8 on the fastest worker: adapt=True)" in models[0].explain()
    models[2].close()
    store = models[0]._synchroniser.way.store
    while len(store.round_members) > 2:
        store.keys()
    advance(models[0], 0, 1)
    assert models[0]._synchroniser.way._window == 2
    assert models[1]._synchroniser.way._window == 4
    for model in models[:2]:
        model.close()


def test_meeting_again_in_async_takes_what_others_have_done_since(stores):
    over = at(stores, "async")
    nets = [build(rank) for rank in range(2)]
    models = in_threads(
        2, lambda rank: gradtide.DataParallel(nets[rank], sgd(nets[rank]), Local(2, over=over), job=Job(rank, 2))
    )
    for rank in range(2):
        advance(models[rank], rank, 2)
    assert not alike(values(nets[0]), values(nets[1]))
    models[0].meet()
    assert alike(values(nets[0]), values(nets[1]))
    for model in models:
        model.close()


def test_a_masked_loss_counts_by_functional_terms(stores):
    """A worker all of whose windows count nothing changes nothing."""
    over = at(stores, "async")
    net = build()
    model = gradtide.DataParallel(net, sgd(net), Local(1, NESTEROV, over=over), job=Job())
    before = values(net)
    model.weigh(0)
    functional.mse_loss(model(batch(0, 0)), torch.zeros(4, 2).double()).backward()
    model.step()
    assert alike(values(net), before)
    model.close()


def test_who_comes_later_begins_with_the_base_and_the_batches_of_its_first_round(stores):
    over, done, given, bases = at(stores), threading.Event(), {}, {}
    data = [batch(0, step, 6) for step in range(5000)]

    def first():
        job, net = Job(0, 1), build()
        model = gradtide.DataParallel(net, sgd(net), Local(3, over=over), job=job)
        way = model._synchroniser.way
        begun.set()
        for x in gradtide.shard(data, job=job, check=False):
            model(x).square().mean().backward()
            model.step()
            if job.batches == 4:
                model.meet()  # rounds are not all as long
            if way.apart == 0:
                given[way._attendance.round], bases[way._attendance.round] = job.batches, values(net)
            if done.is_set():
                break
        model.close()

    def second():
        assert begun.wait(30)
        job, net = Job(1, 2, incarnation=1), build(1)
        model = gradtide.DataParallel(net, sgd(net), Local(3, over=over), job=job)
        found = model._synchroniser.way._attendance.round, job.behind, values(net)
        for _, x in zip(range(6), gradtide.shard(data, job=job, check=False), strict=False):
            model(x).square().mean().backward()
            model.step()
        model.close()
        done.set()
        return *found, job.batches

    begun = threading.Event()
    nothing, (before, behind, base, batches) = in_threads(2, lambda rank: second() if rank else first())
    assert nothing is None
    assert behind == given[before] > 0
    assert alike(base, bases[before])
    assert batches == behind + 6


@pytest.mark.parametrize("sync", ["servers", "together"])
def test_meeting_where_steps_are_taken_together_changes_nothing(stores, sync):
    nets = [build(), build()]
    over = at(stores)
    rule = sgd(nets[0])
    model = gradtide.DataParallel(
        nets[1], sgd(nets[1]), over if sync == "servers" else Local(2, over=over, after=4), job=Job()
    )
    for step in range(4):
        rule.zero_grad()
        nets[0](batch(0, step)).square().mean().backward()
        rule.step()
        advance(model, 0, 1, step)
        model.meet()
    model.close()
    assert close(*nets)


def test_a_training_is_resumed_from_the_base_and_the_outer_state(stores):
    once, over = build(), at(stores)
    rule = torch.optim.SGD(once.parameters(), lr=0.1)
    model = gradtide.DataParallel(once, rule, Local(2, NESTEROV, over=over), job=Job())
    advance(model, 0, 8)
    model.close()
    over = at(stores)
    for resume in (False, True):
        net = build(int(resume))  # whose values don't count then
        again = Servers("bsp", stores, name=over.name, resume=resume)
        rule = torch.optim.SGD(net.parameters(), lr=0.1)
        model = gradtide.DataParallel(net, rule, Local(2, NESTEROV, over=again), job=Job())
        advance(model, 0, 4, 4 * resume)
        model.close()
    assert alike(values(net), values(once))
