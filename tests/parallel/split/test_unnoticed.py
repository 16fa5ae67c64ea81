"""What a user changes, keeps or reads behind a split model's back: its devices would never know, so it is refused."""

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradtide
from gradtide.errors import ConfigError
from gradtide.parallel.split.trace import trace

X = torch.randn(9, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = torch.arange(9) % 3


class Scaled(nn.Module):
    """A number, a buffer and a batch norm between two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.drop, self.b = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.scale, self.calls = 1.0, 0
        self.register_buffer("mask", torch.ones(8))
        self.double()

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x))) * self.mask) * self.scale


def split(net, layout="a | ..", devices=2, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return gradtide.ModelParallel(net, optimizer, split=layout, devices=devices, **options)


def stepped(net, *layout, **options):
    model = split(net, *layout, **options)
    model.step(X, Y, F.cross_entropy)
    return model


# --- changed after the model was split ---

CHANGES = {
    "scale was 1.0 and is 2.0": lambda net: setattr(net, "scale", 2.0),
    "drop.p was 0.5 and is 0.1": lambda net: setattr(net.drop, "p", 0.1),
    "norm.momentum was 0.1 and is None": lambda net: setattr(net.norm, "momentum", None),
    "mask was changed": lambda net: net.mask.fill_(0.0),
    "a.weight was changed": lambda net: nn.init.zeros_(net.a.weight),
    "a.bias was changed": lambda net: net.a.bias.register_hook(lambda gradient: gradient * 2),
    "b._forward_hooks was changed": lambda net: net.b.register_forward_hook(lambda *_: None),
    "modules was added, replaced or taken out": lambda net: setattr(net, "drop", nn.Dropout(0.5)),
}


@pytest.mark.parametrize("told", CHANGES)
def test_what_is_changed_in_the_wrapped_model_is_noticed_before_the_next_step(told):
    net = Scaled()
    model = stepped(net)
    before = copy.deepcopy(model.state_dict())
    CHANGES[told](net)
    with pytest.raises(ConfigError, match=f"since the model was split .*{told}"):
        model.step(X, Y, F.cross_entropy)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.close()


def test_notes_that_are_new_and_modes_are_no_changes():
    net = Scaled()
    model = stepped(net)
    net.best_epoch = 3
    model.eval()(X)
    model.train().step(X, Y, F.cross_entropy)
    model.give_back()
    model.step(X, Y, F.cross_entropy)
    model.close()


def test_groups_that_swap_their_parameters_are_noticed():
    net = Scaled()
    optimizer = torch.optim.SGD([{"params": net.a.parameters()}, {"params": net.b.parameters(), "lr": 0.01}], lr=0.1)
    model = gradtide.ModelParallel(net, optimizer, split="a | ..", devices=2)
    model.step(X, Y, F.cross_entropy)
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]
    with pytest.raises(ConfigError, match="given to the optimizer since the model was split"):
        model.step(X, Y, F.cross_entropy)
    model.close()


def test_a_state_given_to_the_optimizer_itself_is_noticed_and_one_that_was_given_back_is_not():
    net = Scaled()
    optimizer = torch.optim.Adam(net.parameters())
    model = gradtide.ModelParallel(net, optimizer, split="a | ..", devices=2)
    model.step(X, Y, F.cross_entropy)
    state = copy.deepcopy(model.optimizer_state_dict())
    model.give_back()
    model.step(X, Y, F.cross_entropy)
    optimizer.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"give it to load_optimizer_state_dict\(\) of the split model"):
        model.step(X, Y, F.cross_entropy)
    model.close()


# --- gradients that would go nowhere, and parameters that are elsewhere ---


@pytest.mark.parametrize(("x", "y"), [(X.clone().requires_grad_(), Y), (X, torch.rand(9, 3).requires_grad_())])
def test_inputs_and_targets_that_ask_for_a_gradient_are_refused(x, y):
    with pytest.raises(ConfigError, match="an input or the targets ask for a gradient"):
        split(Scaled()).step(x, y, F.cross_entropy)


def test_an_emptied_model_is_neither_saved_nor_copied_nor_changed_and_given_back_it_is_whole():
    net = Scaled()
    model = stepped(net)
    for use in (net.state_dict, lambda: copy.deepcopy(net)):
        with pytest.raises(ConfigError, match=r"on the devices: ask the split model for its state_dict\(\)"):
            use()
    for parameter in net.parameters():
        with pytest.raises(RuntimeError, match="single memory location"):
            parameter.data.clamp_(-0.01, 0.01)  # as weights are clipped: it would be lost
    with pytest.raises(RuntimeError):
        net(X)
    model.give_back()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in net.state_dict().items())
    copy.deepcopy(net).eval()(X)
    model.close()


def test_a_penalty_on_parameters_in_the_loss_is_refused():
    net = Scaled()

    def penalised(outputs, targets):
        return F.cross_entropy(outputs, targets) + 0.1 * sum(p.pow(2).sum() for p in net.parameters())

    model = split(net)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ConfigError, match="the loss reads a tensor that asks for a gradient"):
        model.step(X, Y, penalised)
    found = model.state_dict()
    assert all(torch.equal(found[name], before[name]) for name, _ in net.named_parameters())
    model.close()


def test_a_loss_without_a_gradient_is_refused():
    with pytest.raises(ConfigError, match="the loss has no gradient"):
        split(Scaled()).step(X, Y, lambda outputs, targets: F.cross_entropy(outputs.detach(), targets))


def test_a_loss_that_draws_random_numbers_is_refused_where_several_devices_compute_it():
    def noisy(outputs, targets):
        return F.cross_entropy(outputs + torch.randn_like(outputs), targets)

    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).double()
    with pytest.raises(ConfigError, match="something else every time"):
        split(copy.deepcopy(net), "/2").step(X, Y, noisy)
    alone = split(net, "0 | 1")
    alone.step(X, Y, noisy)
    alone.close()


# --- kept from call to call ---


def counts_in_a_buffer(self, x):
    if self.training:
        self.mask += 1
    return Scaled.forward(self, x)


def counts_in_a_number(self, x):
    if self.training:
        self.calls += 1
    return Scaled.forward(self, x) * (1 + self.calls)


def keeps_what_it_saw(self, x):
    self.mask.copy_(self.a(x).detach().mean(0))
    return Scaled.forward(self, x)


def replaces_a_buffer(self, x):
    self.mask = self.mask * 2
    return Scaled.forward(self, x)


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (counts_in_a_buffer, "mask was changed"),
        (counts_in_a_number, "calls was 0 and is 1"),
        (keeps_what_it_saw, "mask was changed"),
        (replaces_a_buffer, "mask was changed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_forward_that_keeps_something_is_refused_and_leaves_the_model_as_it_was(forward, told):
    net = type("Keeps", (Scaled,), {"forward": forward})()
    with pytest.raises(ConfigError, match=f"in the model's forward {told}"):
        trace(net, X[:4])
    assert net.calls == 0
    assert torch.equal(net.mask, torch.ones(8, dtype=torch.float64))


def test_samples_that_look_at_those_before_them_are_refused():
    class Running(Scaled):
        def forward(self, x):
            return self.b(self.a(x).cumsum(0))

    with pytest.raises(ConfigError, match="cumsum makes something else of a sample when other samples are beside it"):
        trace(Running(), X[:4])


# --- read elsewhere than in numbers of the module ---

STEPS, SCALES, PLACES = 0, [1.0], iter(range(1000))


class Elsewhere(Scaled):
    """Reads what `read` says: in containers and options that it has, in its class, in globals."""

    times = 1.0

    def __init__(self):
        super().__init__()
        self.listed, self.named, self.log = [1.0], {"scale": 1.0}, []
        self.options = SimpleNamespace(scale=1.0)


def steps_of_a_global(self):
    global STEPS
    STEPS += 1
    return 1.0 + STEPS


def steps_of_a_class(self):
    type(self).times += 1
    return self.times


READS = {
    "listed": (lambda self: self.listed[0], lambda net: net.listed.__setitem__(0, 3.0)),
    "named": (lambda self: self.named["scale"], lambda net: net.named.update(scale=3.0)),
    "options": (lambda self: self.options.scale, lambda net: setattr(net.options, "scale", 3.0)),
    "Elsewhere.times": (lambda self: self.times, lambda net: setattr(Elsewhere, "times", 3.0)),
    "test_unnoticed.SCALES": (lambda self: SCALES[0], lambda net: SCALES.__setitem__(0, 3.0)),
}
KEEPS = {
    "listed": lambda self: self.listed.append(1.0) or float(len(self.listed)),
    "named": lambda self: self.named.update(scale=self.named["scale"] + 1) or self.named["scale"],
    "options": lambda self: setattr(self.options, "scale", self.options.scale + 1) or self.options.scale,
    "test_unnoticed.STEPS": steps_of_a_global,
    r"\w+.times": steps_of_a_class,
    "test_unnoticed.PLACES": lambda self: 1.0 + next(PLACES),
}


def that_reads(read):
    return type("Reads", (Elsewhere,), {"read": read, "forward": lambda s, x: Scaled.forward(s, x) * s.read()})()


@pytest.mark.parametrize("told", READS)
def test_what_a_forward_reads_elsewhere_is_noticed_when_it_changes(told, monkeypatch):
    monkeypatch.setattr(Elsewhere, "times", 1.0)
    monkeypatch.setitem(globals(), "SCALES", [1.0])
    read, change = READS[told]
    net = that_reads(read)
    model = stepped(net)
    net.log.append(model.step(X, Y, F.cross_entropy))  # which no forward reads
    model.step(X, Y, F.cross_entropy)
    change(net)
    with pytest.raises(ConfigError, match=f"since the model was split {told} was"):
        model.step(X, Y, F.cross_entropy)
    model.close()


@pytest.mark.parametrize("told", KEEPS)
def test_what_a_forward_keeps_elsewhere_is_refused_and_is_as_it_was(told, monkeypatch):
    monkeypatch.setattr(Elsewhere, "times", 1.0)
    net = that_reads(KEEPS[told])
    before = STEPS, list(net.listed), dict(net.named), net.options.scale
    with pytest.raises(ConfigError, match=f"in the model's forward {told} was"):
        trace(net, X[:4])
    assert (STEPS, net.listed, net.named, net.options.scale) == before


# --- drawn from call to call ---

OWN, OWN_OF_NUMPY, OWN_OF_TORCH = random.Random(3), np.random.default_rng(3), torch.Generator().manual_seed(3)
DRAWS = {
    "Python's random": lambda: random.random(),
    "Python's random of its own": lambda: OWN.uniform(0, 1),
    "numpy.random": lambda: np.random.rand(),
    "numpy.random of its own": lambda: OWN_OF_NUMPY.random(),
    "a torch.Generator": lambda: torch.rand((), generator=OWN_OF_TORCH).item(),
    "torch": lambda: torch.rand(()).item(),
}


class LayerDrop(nn.Module):
    """Leaves layers out at random, while it is trained."""

    def __init__(self, draw, dropped=0.3):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 3)
        self.draw, self.dropped = draw, dropped
        self.double()

    def forward(self, x):
        for layer in self.layers:
            if not self.training or self.draw() >= self.dropped:
                x = x + torch.tanh(layer(x))
        return self.head(x)


@pytest.mark.parametrize("what", DRAWS)
def test_layers_left_out_at_random_are_refused_whatever_was_drawn(what):
    states = random.getstate(), OWN.getstate(), str(np.random.get_state()), OWN_OF_NUMPY.bit_generator.state
    for dropped in (0.3, 0.0):
        net = LayerDrop(DRAWS[what], dropped)
        drawn = torch.get_rng_state()
        with pytest.raises(ConfigError, match=r"forward (draws from|of LayerDrop draws random numbers)") as error:
            split(net, "layers.0 | ..").step(X, Y, F.cross_entropy)
        assert what.removesuffix(" of its own") in str(error.value)
        assert torch.equal(torch.get_rng_state(), drawn)
    now = random.getstate(), OWN.getstate(), str(np.random.get_state()), OWN_OF_NUMPY.bit_generator.state
    assert now == states


@pytest.mark.parametrize("layout", ["..layers.0 | ..", "x2"])
def test_layers_left_out_by_an_input_are_split_and_equal_one_process(layout):
    class Given(LayerDrop):
        def forward(self, x, kept):
            for number, layer in enumerate(self.layers):
                x = x + kept[number] * torch.tanh(layer(x))
            return self.head(x)

    plain, kept = Given(None), torch.tensor([1.0, 0.0, 1.0, 1.0])
    model, optimizer = split(copy.deepcopy(plain), layout), torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(plain(X, kept), Y).backward()
        optimizer.step()
        model.step((X, kept), Y, F.cross_entropy)
        kept = kept.roll(1)
    assert all(torch.allclose(model.state_dict()[k], v, atol=1e-12) for k, v in plain.state_dict().items())
    model.close()


# --- counts that don't fit, with one sample a part ---

WORDS = torch.tensor([[1, 2, -100, -100], [0, 1, 2, 1], [2, -100, -100, -100]])


def mean_over_words(outputs, targets):
    return F.cross_entropy(outputs, targets)


def words(targets):
    return (targets != -100).sum()


@pytest.mark.parametrize("count", [len, "sum", lambda targets: 1.0, lambda targets: len(targets) ** 2])
@pytest.mark.parametrize(("layout", "devices", "micro"), [("0 | ..", 2, 3), ("x3", 3, 1)])
def test_a_count_that_does_not_fit_is_refused_even_with_one_sample_a_part(layout, devices, micro, count):
    net = nn.Sequential(nn.Linear(6, 12), nn.Unflatten(1, (3, 4))).double()
    expected = mean_over_words(net(X[:3]), WORDS).item()
    fits = split(copy.deepcopy(net), layout, devices, micro_batches=micro, count=words)
    assert float(fits.step(X[:3], WORDS, mean_over_words)) == pytest.approx(expected, abs=1e-12)
    fits.close()
    with pytest.raises(ConfigError, match=r"it is not what loss_terms says|terms for a batch's targets"):
        split(net, layout, devices, micro_batches=micro, count=count).step(X[:3], WORDS, mean_over_words)
