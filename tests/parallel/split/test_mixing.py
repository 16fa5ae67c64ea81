"""Samples that depend on the others of their batch: refused also where nothing of it shows in the first batch."""

import copy

import failing_runs as f
import pytest
import split_runs as runs
import torch
import torch.nn.functional as F
from torch import nn

import gradtide
from gradtide.errors import ConfigError
from gradtide.parallel.split.trace import keep_whole, trace

MIXED = "of all samples together|when other samples are beside it"


class Between(nn.Module):
    """Two linear layers, and something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.between = nn.Linear(8, 8).double(), nn.Linear(8, 3).double(), between

    def forward(self, x):
        return self.b(self.between(self.a(x)))


class Experts(nn.Module):
    """A Mixture of Experts that takes 12 of 64 samples each."""

    def __init__(self, capacity=12):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.capacity = capacity
        self.double()

    def forward(self, x):
        share, which = self.gate(x).softmax(-1).max(-1)
        mine = F.one_hot(which, 4).to(x.dtype)
        taken = mine * (mine.cumsum(0) <= self.capacity).to(x.dtype)
        made = sum(taken[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return self.head(x + made * share[:, None])


def batch(count=64):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 8, generator=generator, dtype=torch.float64), torch.arange(count) % 3


def split(net, layout="x2", devices=2, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return gradtide.ModelParallel(net, optimizer, split=layout, devices=devices, **options)


def where(x, chosen):
    """Nothing else than x, as long as nothing is chosen."""
    return x * (1 + chosen.to(x.dtype))


@pytest.mark.parametrize(
    ("layout", "devices", "micro"), [("x2", 2, 1), ("gate | ..", 2, 4), ("auto", 2, None), ("gate x2 | .. /2", 4, 2)]
)
def test_experts_with_a_capacity_are_refused_under_every_layout(layout, devices, micro):
    net = Experts()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ConfigError, match="makes cumsum of all samples together"):
        split(net, layout, devices, micro_batches=micro).step(*batch(), F.cross_entropy)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


HIDDEN = {
    "cumsum": lambda x: where(x, (x > 0).cumsum(0) > 40),
    "cumprod": lambda x: where(x, (x.abs() + 1).cumprod(0) > 1e20),
    "cummax": lambda x: where(x, x.cummax(0).values > 9.0),
    "topk": lambda x: where(x, x > x.topk(2, 0).values[-1] + 9.0),
    "kthvalue": lambda x: where(x, x > x.kthvalue(2, 0).values + 9.0),
    "sort": lambda x: where(x, x > x.sort(0).values + 9.0),
    "argsort": lambda x: where(x, x.argsort(0).argsort(0) >= 40),
    "roll": lambda x: where(x, x.roll(1, 0) > 9.0),
    "flip": lambda x: where(x, x.flip(0) > 9.0),
    "bincount": lambda x: where(x, (torch.bincount(x.argmax(-1), minlength=8) > 40)[x.argmax(-1), None]),
    "unique": lambda x: where(x, x[:, 0].sign().unique(return_counts=True)[1].max() > 50),
    "mean": lambda x: where(x, x.mean(0) > 9.0),
    "max": lambda x: where(x, x.max(0).values > 9.0),
    "softmax": lambda x: where(x, x.softmax(0) > 0.99),
    "the first sample": lambda x: where(x, x[0] > 9.0),
    "how many": lambda x: where(x, (x[:, 0] > 0).sum() > 50),
    "each with each": lambda x: where(x, (x @ x.T > 99.0).any(1, keepdim=True)),
    "its place": lambda x: where(x, (torch.arange(x.shape[0]) >= 40)[:, None]),
    "picked and cut off": lambda x: x.index_add(0, (x[:, 0] > 0).nonzero()[:60, 0], x[(x[:, 0] > 0).nonzero()[:60, 0]]),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_what_looks_at_all_samples_is_refused_though_this_batch_would_not_show_it(what):
    net = Between(HIDDEN[what])
    with pytest.raises(ConfigError, match=MIXED):
        split(net).step(*batch(), F.cross_entropy)


ALONE = {
    "picked and put back": lambda x: x.index_add(0, (x[:, 0] > 0).nonzero()[:, 0], x[x[:, 0] > 0].tanh()),
    "a mask": lambda x: x.masked_scatter((x[:, :1] > 0).expand_as(x), x[x[:, 0] > 0].tanh()),
    "sorted by expert and back": lambda x: x[x.argmax(-1).argsort()].sin()[x.argmax(-1).argsort().argsort()],
    "places": lambda x: x * x[torch.arange(x.shape[0]), x.argmax(-1)][:, None],
    "time first": lambda x: (
        x.view(-1, 4, 2).transpose(0, 1).reshape(-1, 2).tanh().view(4, -1, 2).transpose(0, 1).flatten(1)
    ),
    "two batches in one": lambda x: torch.cat([x, 2 * x]).view(-1, 2).tanh().view(2, -1, 8).sum(0),
    "within a sample": lambda x: x.cumsum(-1).sort(-1).values.flip(1).roll(1, 1) + x.topk(2, -1).values.sum(-1, True),
}


@pytest.mark.parametrize("what", ALONE)
def test_what_looks_at_each_sample_alone_is_split_and_equals_one_process(what):
    plain = Between(ALONE[what])
    model, optimizer = split(copy.deepcopy(plain), micro_batches=2), torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
        model.step(x, y, F.cross_entropy)
    state = model.state_dict()
    assert all(torch.allclose(state[key], value, rtol=0, atol=1e-10) for key, value in plain.state_dict().items())
    model.close()


def test_a_class_that_is_kept_whole_and_mixes_in_training_alone_is_refused():
    class Centred(nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return x - x.mean(0) if self.training else x

    keep_whole(Centred)
    with pytest.raises(ConfigError, match="makes mean of all samples together"):
        trace(nn.Sequential(nn.Linear(8, 8), Centred(8, 3)), torch.rand(5, 8))


def test_a_capacity_that_only_the_whole_batch_reaches_is_told_to_all_ranks(device_processes):
    for told in device_processes.run(f.over_capacity, 2, runs.new_name()):
        assert "makes something else of a sample when other samples are beside it" in told
