"""What the workers' processes of the tests of balance do: they train on a clock of their own."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
import gradtide.errors
from gradtide.collective import Group
from gradtide.parallel.agreed_shares import AgreedShares
from gradtide.sync import Job
from gradtide.sync.watching.stopwatch import Stopwatch

SAMPLES, BATCH, EPOCHS = 240, 24, 3


class RandomShares(AgreedShares):
    """Others at every step, the same on all workers; nobody measures anything."""

    def __init__(self, job):
        super().__init__(job)
        self._random = random.Random(3)

    def of(self, samples):
        cuts = sorted(self._random.randint(0, samples) for _ in range(self._job.size - 1))
        return tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, samples], strict=True))


class OwnClock(AgreedShares):
    """Time passes as the test says."""

    def __init__(self, job):
        super().__init__(job)
        self.now, self.seen = 0.0, []
        self._watch = Stopwatch(lambda: self.now)

    def of(self, samples):
        self.seen.append(super().of(samples))
        return self.seen[-1]


def net_of(kind):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8)] if kind == "batch norm" else [nn.Linear(6, 8)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 1)).double()


def loader():
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), BATCH, shuffle=False)


def alone(optimizer):
    net = net_of("plain")
    rule = optimizer(net)
    for x, y in list(loader()) * EPOCHS:
        functional.mse_loss(net(x), y).backward()
        rule.step()
        rule.zero_grad()
    return [p.detach().clone() for p in net.parameters()]


def momentum(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def plain(net):
    return torch.optim.SGD(net.parameters(), lr=0.05)


def train(rank, size, name, options, store=None, sample_s=None, kind="plain", optimizer=momentum):
    """`sample_s`: what a sample costs each worker, from each batch on; without, shares are random."""
    told = []
    with Group.join(name, rank, size, timeout_s=30) as group:
        job, net = Job.of(group, store), net_of(kind)
        model = gradtide.DataParallel(net, optimizer(net), job=job, emit=told.append, **options)
        shares = RandomShares(job) if sample_s is None else OwnClock(job)
        step, data = 0, loader()
        for _ in range(EPOCHS):
            for x, y in gradtide.shard(data, balance=shares, job=job):
                if sample_s is not None:
                    now = max(at for at in sample_s if at <= step)
                    shares.now += len(x) * sample_s[now][rank]
                functional.mse_loss(model(x), y).backward()
                model.step()
                step += 1
        said, seen = model.explain(), getattr(shares, "seen", [])
        model.close()
    changes = [event for event in told if isinstance(event, gradtide.events.SharesChanged)]
    return [p.detach().clone() for p in net.parameters()], seen, said, changes


def refused(rank, size, name, options, store):
    with Group.join(name, rank, size, timeout_s=30) as group:
        job, net = Job.of(group, store), net_of("plain")
        model = gradtide.DataParallel(net, plain(net), job=job, **options)
        try:
            for _ in gradtide.shard(loader(), balance=True, job=job):
                return "a batch was given"
        except gradtide.errors.ConfigError as error:
            return str(error)
        finally:
            model.close()


def measured(rank, size, name):
    """The real clock: what a worker waits for others is not what it computes."""
    with Group.join(name, rank, size, timeout_s=30) as group:
        job, net = Job.of(group), net_of("plain")
        model = gradtide.DataParallel(net, plain(net), job=job)
        data = loader()
        for x, y in gradtide.shard(data, balance=True, job=job):
            functional.mse_loss(model(x), y).backward()
            model.step()
        again = gradtide.shard(data, balance=True, job=job)
        same = again._shares is job.balance
        model.close()
        return same, job.balance._meter.estimate().measurements, job.stopwatch is None
