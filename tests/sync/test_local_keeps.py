"""Local steps: what meetings and changes of the model leave as it was."""

import copy

import pytest
import torch
import training
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.sync import Job, Local

LEAST = torch.finfo(torch.float32).min
NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("least", torch.full((3,), LEAST))
        self.register_buffer("hidden", torch.full((3,), -torch.inf))
        self.register_buffer("constant", torch.tensor([0.1, 1 / 3]))

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def numbers(count, size):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator))] * count


def train(rank, size, name, batch, local, freeze=(), thaw=()):
    """The buffers, and the momentum of the first layer's weight before and after each change, and of the outer step."""
    torch.manual_seed(0)
    net, seen = Masked(), []
    rule = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group, None)
        model = gradtide.DataParallel(net, rule, local, job=job)
        for step, (x, y) in enumerate(gradtide.shard(numbers(9, batch), job=job)):
            before = copy.deepcopy(rule.state.get(net.first.weight))
            if step in (*freeze, *thaw):
                net.last.requires_grad_(step in thaw)
            loss = functional.cross_entropy(model(x), y)  # takes the change up
            if step in (*freeze, *thaw):
                seen.append((before["momentum_buffer"], rule.state[net.first.weight]["momentum_buffer"].clone()))
            loss.backward()
            model.step()
        outer = {key: len(value) for key, value in model._synchroniser.way._known.of.items()}
        model.close()
    return dict(net.named_buffers()), seen, outer


def test_masks_and_constants_stay_what_they_are_where_workers_meet(workers):
    for batch in (7, 1):  # of one sample one of two workers has none
        for buffers, _, _ in workers.run(train, 2, training.new_name(), batch, Local(2)):
            assert torch.equal(buffers["least"], torch.full((3,), LEAST))
            assert torch.equal(buffers["hidden"], torch.full((3,), -torch.inf))
            assert torch.equal(buffers["constant"], torch.tensor([0.1, 1 / 3]))


def test_each_worker_keeps_its_optimizer_state_when_a_layer_is_frozen(workers):
    found = workers.run(train, 2, training.new_name(), 7, Local(3, NESTEROV), (4,), (7,))
    (one, _), (other, _) = (seen[0] for _, seen, _ in found)
    assert not torch.equal(one, other)
    for _, seen, outer in found:
        assert all(torch.equal(before, after) for before, after in seen)
        assert set(outer) == {"first.weight", "first.bias", "last.weight", "last.bias"}


def go_on(rank, size, name, begin, end, kept):
    """Steps from one to another, with what a script of one's own keeps of a worker; what it keeps then, and all it
    has."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    rule = torch.optim.AdamW(net.parameters(), lr=0.05)
    data = [(x.double(), y) for x, y in numbers(end, 7)][begin:]
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group, None)
        model = gradtide.DataParallel(net, rule, Local(2, NESTEROV, after=2), job=job)
        if kept is not None:
            model.load_state_dict(kept[rank]["model"])
            rule.load_state_dict(kept[rank]["optimizer"])
            model.load_sync_state(kept[rank]["sync"])
        for x, y in gradtide.shard(data, job=job):
            functional.cross_entropy(model(x), y).backward()
            model.step()
        saved = {"model": model.state_dict(), "optimizer": rule.state_dict(), "sync": model.sync_state()}
        saved = copy.deepcopy(saved)
        model.close()
    return saved


def test_a_loop_of_ones_own_goes_on_bit_for_bit_with_what_it_kept(workers):
    whole = workers.run(go_on, 2, training.new_name(), 0, 10, None)
    half = workers.run(go_on, 2, training.new_name(), 0, 6, None)
    again = workers.run(go_on, 2, training.new_name(), 6, 10, half)
    for one, other in zip(whole, again, strict=True):
        assert one["sync"]["steps"] == other["sync"]["steps"] == 10
        assert one["sync"]["windows"] == other["sync"]["windows"] == 4
        for name, state in one["sync"]["outer"].items():
            assert torch.equal(state["momentum_buffer"], other["sync"]["outer"][name]["momentum_buffer"])
        assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())


def test_what_the_outer_optimizer_remembers_is_kept_where_workers_met_and_loaded_where_it_belongs():
    net = nn.Linear(2, 2)
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2, NESTEROV), job=Job())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        model.step()
    kept = model.sync_state()
    model(torch.ones(1, 2)).sum().backward()
    model.step()
    with pytest.raises(ConfigError, match="taken 1 steps by itself since they last met, and this can't be kept"):
        model.sync_state()
    model.meet()
    other = nn.Sequential(nn.Linear(2, 2))
    another = gradtide.DataParallel(other, torch.optim.SGD(other.parameters(), lr=0.1), Local(2), job=Job())
    with pytest.raises(ConfigError, match="of another model: it has 'weight'"):
        another.load_sync_state(kept)
    adam = Local(2, gradtide.update("adam", lr=0.1))
    alike = nn.Linear(2, 2)
    third = gradtide.DataParallel(alike, torch.optim.SGD(alike.parameters(), lr=0.1), adam, job=Job())
    with pytest.raises(ConfigError, match="of an outer sgd, and this one is adam"):
        third.load_sync_state(kept)
    plain = gradtide.DataParallel(other, torch.optim.SGD(other.parameters(), lr=0.1), job=Job())
    assert plain.sync_state() == {}
    with pytest.raises(ConfigError, match="load it with sync="):
        plain.load_sync_state(kept)


def scaled_step(model, rule, scaler, rank, step):
    """As a script writes it; worker 0's gradient overflows in its second step. Whether the step was left out."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    loss = model(x).square().mean() * (torch.inf if (rank, step) == (0, 1) else 1.0)
    scaler.scale(loss).backward()
    scaler.step(rule)
    before = scaler.get_scale()
    scaler.update()
    rule.zero_grad()
    return scaler.get_scale() < before


def scaled_net():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    return net, torch.optim.AdamW(net.parameters(), lr=0.05), torch.amp.GradScaler("cpu", init_scale=64.0)


def scale(rank, size, name):
    net, rule, scaler = scaled_net()
    with Group.join(name, rank, size, timeout_s=30) as group:
        model = gradtide.DataParallel(net, rule, Local(4), job=Job.of(group, None))
        for step in range(4):
            if scaled_step(model, rule, scaler, rank, step):
                rule.step()  # with nothing: it is counted
        model.close()
    return [p.detach() for p in net.parameters()]


def test_a_step_that_a_scaler_leaves_out_on_one_worker_can_be_counted_there(workers):
    alone = [scaled_net() for _ in range(2)]
    for rank, one in enumerate(alone):
        assert [scaled_step(*one, rank, step) for step in range(4)] == [False, rank == 0, False, False]
    wanted = [(a + b) / 2 for a, b in zip(alone[0][0].parameters(), alone[1][0].parameters(), strict=True)]
    for found in workers.run(scale, 2, training.new_name()):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(found, wanted, strict=True))


def test_a_window_that_is_longer_than_an_epoch_is_told_once(recwarn):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    net, job = nn.Linear(4, 3), Job()
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), Local(4), job=job)
    list(gradtide.shard(torch.utils.data.DataLoader(Endless()), job=job))
    assert list(gradtide.shard(numbers(4, 2), job=job))
    assert not recwarn.list
    for _ in range(2):
        list(gradtide.shard(numbers(3, 2), job=job))
    assert [str(one.message).split(",")[0] for one in recwarn.list] == ["Local(4): there are 3 batches here"]
    model.close()
