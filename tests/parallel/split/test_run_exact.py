"""Exact or refused: what a split model meets in users' programs, compared with plain PyTorch."""

import gc
import weakref

import pytest
import torch
from split_runs import layout_of
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.errors import CommunicationError, ConfigError, DataError
from gradtide.parallel.split.run import walk
from gradtide.parallel.split.run.segments import record
from gradtide.parallel.split.run.setting_up import is_released
from gradtide.parallel.split.trace import keep_whole, trace
from gradtide.sync import Job

X = torch.randn(33, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(0, 5, (33,), generator=torch.Generator().manual_seed(2))
WIDE = "0..5 | 6.. /2 @1,2"


def plain():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 5)]
    return nn.Sequential(*layers).double()


def momentum(net):
    return torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def wrap(net, rule, split, devices, **options):
    return gradtide.ModelParallel(net, rule, split, devices=devices, job=Job(), **options)


def both(make, split, devices, loss=functional.cross_entropy, rule=momentum, after=None, steps=3, data=None, **options):
    """Losses and states of one process in plain PyTorch, and of the devices; `after(optimizer, step)` changes rates."""
    batches = data or [(X, Y)] * steps
    net = make()
    optimizer, expected = rule(net), []
    for step, (x, y) in enumerate(batches):
        outputs = net(**x) if isinstance(x, dict) else net(*x) if isinstance(x, tuple) else net(x)
        value = loss(outputs, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        expected.append(value.item())
        if after:
            after(optimizer, step)
    other = make()
    optimizer2 = rule(other)
    model, found = wrap(other, optimizer2, split, devices, **options), []
    for step, (x, y) in enumerate(batches):
        found.append(float(model.step(x, y, loss)))
        if after:
            after(optimizer2, step)
    states = net.state_dict(), model.state_dict()
    assert found == pytest.approx(expected, abs=1e-10)
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        assert torch.allclose(states[1][name].double(), value.double(), atol=1e-10, rtol=0), name
    return net, model


def make_layout(make, kind, micro_batches, example=X):
    units = [unit.name for unit in trace(make(), example[:4]).units]
    return layout_of(kind, units, micro_batches)


# --- losses ---


def test_a_loss_of_ones_own_needs_count():
    def squared(outputs, y):
        return (outputs.square().sum(1) * (y + 1)).sum() / (y + 1).sum()

    net = plain()
    model = wrap(net, momentum(net), make_layout(plain, "pipeline 2", 4), 2)
    with pytest.raises(ConfigError, match=r"squared is a function of your own.*count="):
        model.step(X, Y, squared)
    model.close()
    both(plain, make_layout(plain, "copies 2", 3), 2, squared, count=lambda y: (y + 1).sum())


def test_a_loss_that_is_a_sum_and_one_with_ignored_and_weighted_classes():
    both(plain, make_layout(plain, "data 2 pipeline 2", 3), 4, nn.CrossEntropyLoss(reduction="sum"))
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0], dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=weights, ignore_index=2)
    both(plain, make_layout(plain, "data 2 pipeline 2", 5), 4, loss)


def test_weights_of_classes_and_one_for_all_are_known_and_others_need_count():
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.1], dtype=torch.float64)
    both(plain, make_layout(plain, "data 2 pipeline 2", 3), 4, nn.MultiMarginLoss(weight=weights))
    data = [(X, functional.one_hot(Y, 5).double())]
    one = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0, dtype=torch.float64))
    both(plain, make_layout(plain, "data 2 pipeline 2", 3), 4, one, data=data)
    net = plain()
    model = wrap(net, momentum(net), make_layout(plain, "pipeline 2", 4), 2)
    with pytest.raises(ConfigError, match="has weights that might be its samples"):
        model.step(*data[0], nn.BCEWithLogitsLoss(pos_weight=weights))
    model.close()


def test_batches_of_one_sample_and_of_fewer_than_there_are_copies():
    data = [(X, Y), (X[:1], Y[:1]), (X[:3], Y[:3]), (X[:17], Y[:17])]
    both(plain, make_layout(plain, "data 2 tensor 2", 4), 4, data=data)


# --- optimizers ---


def grouped(net):
    biases = [p for n, p in net.named_parameters() if "bias" in n]
    weights = [p for n, p in net.named_parameters() if "bias" not in n and not n.startswith("2.")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02, "betas": (0.5, 0.9)}]
    return torch.optim.AdamW(groups, lr=0.01)  # 2.weight is in no group


def test_groups_with_options_of_their_own_follow_a_scheduler():
    def change(optimizer, step):
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] *= 0.5 + 0.2 * number

    both(plain, make_layout(plain, "copies, then shards", 2), 2, rule=grouped, after=change, steps=4)


def test_torchs_scheduler_does_not_warn(recwarn):
    net = plain()
    rule = momentum(net)
    model, scheduler = wrap(net, rule, make_layout(plain, "pipeline 2", 2), 2), torch.optim.lr_scheduler.StepLR(rule, 1)
    model.step(X, Y, "cross_entropy")
    scheduler.step()
    model.close()
    assert not [one for one in recwarn if "lr_scheduler" in str(one.message)]


def test_an_optimizer_that_looks_at_whole_tensors_is_refused_on_shards():
    net = plain()
    model = wrap(net, torch.optim.Adafactor(net.parameters()), make_layout(plain, "tensor 2", 1), 2)
    with pytest.raises(ConfigError, match=r"Adafactor is not one of torch's elementwise optimizers, but 0\.weight"):
        model.step(X, Y, "cross_entropy")


class OfOnesOwn(torch.optim.SGD):
    pass


def test_an_optimizer_of_ones_own_is_refused_over_several_stages_and_taken_on_one():
    net = plain()
    model = wrap(net, OfOnesOwn(net.parameters(), lr=0.1), make_layout(plain, "pipeline 2", 1), 2)
    with pytest.raises(ConfigError, match="OfOnesOwn may look at parameters together"):
        model.step(X, Y, "cross_entropy")
    both(plain, make_layout(plain, "copies 2", 2), 2, rule=lambda net: OfOnesOwn(net.parameters(), lr=0.1))


def test_an_optimizer_that_has_stepped_goes_on_with_its_state():
    def stepped(net):
        rule = torch.optim.Adam(net.parameters(), lr=0.01)
        functional.cross_entropy(net(X), Y).backward()
        rule.step()
        rule.zero_grad()
        return rule

    both(plain, make_layout(plain, "copies, then shards", 2), 2, rule=stepped)


# --- models ---


class Odd(nn.Module):
    """Skips, a frozen layer, one that is never used, a mask and a None that cross stages, two inputs, two outputs."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.never = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(8))
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.last = nn.Linear(8, 5)
        self.register_buffer("shift", torch.full((8,), 0.25))

    def forward(self, x, chosen):
        hidden = torch.relu(self.first(x))
        mask = hidden > 0.1
        skipped = self.frozen(hidden)
        hidden = torch.tanh(self.second(skipped)) * self.scale
        index = chosen + 1
        hidden = self.third(hidden) + skipped + self.shift
        hidden = hidden * mask
        return self.last(hidden) + index[:, None], hidden, None


def odd():
    torch.manual_seed(3)
    return Odd().double()


def of_first(outputs, y):
    return functional.cross_entropy(outputs[0], y) + 0.1 * outputs[1].square().mean()


@pytest.mark.parametrize("kind", ["pipeline 2", "pipeline 3", "data 2 pipeline 2", "copies, then shards", "again"])
def test_skips_frozen_and_unused_layers_masks_and_several_outputs(kind):
    chosen = torch.arange(33) % 3
    units = [unit.name for unit in trace(odd(), (X[:4], chosen[:4])).units]
    devices = 4 if kind == "data 2 pipeline 2" else 3 if kind == "pipeline 3" else 2
    data = [((X, chosen), Y), ({"x": X, "chosen": chosen}, Y)][:1] * 3
    net, model = both(odd, layout_of(kind, units, 3), devices, of_first, data=data, count=len)
    net.eval()
    model.eval()
    for found, expected in zip(model(X, chosen), net(X, chosen), strict=True):
        assert (found is None) == (expected is None)
        assert found is None or torch.allclose(found, expected, atol=1e-10)
    model.close()


def normed():
    torch.manual_seed(4)
    first = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 5)).double()


def test_batch_norm_is_exact_or_refused():
    net = normed()
    for kind, devices, micro, says in (("copies 2", 2, 1, "2 copies"), ("pipeline 2", 2, 4, "4 micro-batches")):
        model = wrap(net, momentum(net), make_layout(normed, kind, micro), devices)
        with pytest.raises(ConfigError, match=says):
            model.step(X, Y, "cross_entropy")
        model.close()
    for kind, devices in (("pipeline 2", 2), ("tensor 2", 2), ("again", 2)):
        net, model = both(normed, make_layout(normed, kind, 1), devices)
        assert torch.allclose(model.eval()(X), net.eval()(X), atol=1e-10)
        model.close()
    both(normed, make_layout(normed, "copies, then shards", 1), 2, batch_norm="shared")


def test_shared_batch_norm_refuses_a_batch_with_fewer_samples_than_copies():
    net = normed()
    model = wrap(net, momentum(net), make_layout(normed, "copies 2", 1), 2, batch_norm="shared")
    with pytest.raises(DataError, match="leaves one of 2 copies without a sample"):
        model.step(X[:1], Y[:1], "cross_entropy")
    model.step(X, Y, "cross_entropy")
    model.close()


# --- state ---


def test_state_of_one_layout_goes_on_under_another_and_in_plain_pytorch():
    def adam(net):
        return torch.optim.Adam(net.parameters(), lr=0.01)

    _, model = both(plain, make_layout(plain, "tensor 2", 2), 2, rule=adam)
    state, rule_state = model.state_dict(), model.optimizer_state_dict()
    model.close()
    other = plain()
    model = wrap(other, adam(other), make_layout(plain, "data 2 pipeline 2", 3), 4)
    model.step(X[:5], Y[:5], "cross_entropy")  # forgotten
    model.load_state_dict(state)
    model.load_optimizer_state_dict(rule_state)
    model.step(X, Y, "cross_entropy")
    alone = plain()
    alone.load_state_dict(state)
    rule = adam(alone)
    rule.load_state_dict(rule_state)
    functional.cross_entropy(alone(X), Y).backward()
    rule.step()
    for name, value in alone.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-12), name
    model.give_back()
    assert torch.allclose(other(X), alone(X), atol=1e-10)
    model.close()


def test_what_is_of_another_model_is_refused_by_name():
    net = plain()
    layout = make_layout(plain, "pipeline 2", 2)
    model = wrap(net, momentum(net), layout, 2)
    model.step(X, Y, "cross_entropy")
    with pytest.raises(DataError, match=r"another model: it lacks 2\.weight"):
        model.load_state_dict({name: value for name, value in model.state_dict().items() if name != "2.weight"})
    with pytest.raises(DataError, match=r"another model: 0\.weight has shape"):
        model.load_state_dict({**model.state_dict(), "0.weight": torch.ones(3)})
    with pytest.raises(DataError, match="its groups have"):
        model.load_optimizer_state_dict(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0).state_dict())
    model.close()
    other = normed()
    with pytest.raises(ConfigError, match="the layout is of another model"):
        wrap(other, momentum(other), layout, 2).step(X, Y, "cross_entropy")
    with pytest.raises(ConfigError, match="the layout is for 2 devices, and there are 3"):
        wrap(other := plain(), momentum(other), layout, 3).step(X, Y, "cross_entropy")


# --- use ---


def test_a_forward_with_gradients_says_step():
    net = plain()
    model = wrap(net, momentum(net), make_layout(plain, "pipeline 2", 2), 2)
    with pytest.raises(ConfigError, match=r"model\.step\(x, y, loss_fn\)"):
        model(X)
    with torch.no_grad():
        first = model(X)
    assert not first.requires_grad
    assert torch.allclose(first, plain()(X), atol=1e-12)
    with pytest.raises(ConfigError, match=r"model\.train\(\)"):
        model.eval().step(X, Y, "cross_entropy")
    model.close()


def test_a_change_of_what_is_trained_is_noticed():
    net = plain()
    model = wrap(net, momentum(net), make_layout(plain, "pipeline 2", 2), 2)
    model.step(X, Y, "cross_entropy")
    net[0].weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen, unfrozen or given to the optimizer"):
        model.step(X, Y, "cross_entropy")
    model.close()


class Fragile(nn.Module):
    def forward(self, x):
        if not torch.isfinite(x).all():
            raise ValueError("the second stage can't take this")
        return x * 1.0


keep_whole(Fragile)


def test_the_first_error_of_a_device_ends_the_step_and_the_model_keeps_its_values():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), Fragile(), nn.Linear(8, 5)).double()

    net = make()
    model = wrap(net, momentum(net), make_layout(make, "pipeline 2", 4), 2)
    model.step(X, Y, "cross_entropy")
    before = model.state_dict()
    with pytest.raises(ValueError, match="second stage"):
        model.step(torch.full_like(X, torch.nan), Y, "cross_entropy")
    with pytest.raises(CommunicationError, match="has ended"):
        model.step(X, Y, "cross_entropy")
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value), name
    model.close()


def test_activations_go_as_soon_as_their_backward_is_done_and_nothing_is_left_after_an_error(monkeypatch):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), Fragile(), nn.Linear(8, 5)).double()

    made, most = [], []

    def watched(segment, values, *, recompute):
        found = record(segment, values, recompute=recompute)
        made.extend(weakref.ref(leaf) for leaf in found[0].leaves.values())
        most.append(sum(leaf() is not None for leaf in made))
        return found

    monkeypatch.setattr(walk, "record", watched)
    net = make()
    model = wrap(net, momentum(net), make_layout(make, "pipeline 2", 8), 2)
    model.step(X, Y, "cross_entropy")
    assert len(made) == 16
    assert max(most) <= 3  # 1f1b: two micro-batches on the first device, one on the second
    assert not any(leaf() is not None for leaf in made)
    with pytest.raises(ValueError, match="second stage"):
        model.step(torch.full_like(X, torch.nan), Y, "cross_entropy")
    gc.collect()
    assert len(made) > 16
    assert not any(leaf() is not None for leaf in made)
    model.close()


def test_a_model_on_the_meta_device_begins_alike_under_every_layout():
    states = []
    for kind, devices in (("one", 1), ("copies, then shards on others", 4)):
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 5)).double()
        layout = layout_of(kind, ["0", "1", "2", "3"], 2)
        model = wrap(net, lambda parameters: torch.optim.Adam(parameters, lr=0.01), layout, devices, seed=5)
        model.step(X, Y, "cross_entropy")
        assert all(is_released(parameter) or parameter.is_meta for parameter in net.parameters())
        states.append(model.state_dict())
        model.close()
    for name, value in states[0].items():
        assert torch.allclose(states[1][name], value, atol=1e-10), name
