"""Local steps: what meetings and changes of the model leave as it was."""

import copy

import torch
import training
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.collective import Group
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
