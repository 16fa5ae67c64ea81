"""Training through servers with compressed gradients."""

import pytest
import torch
import training
from safetensors.torch import load_file
from torch import nn

import gradtide
from gradtide import Servers
from gradtide.errors import ConfigError
from gradtide.sync import Job


@pytest.fixture(scope="module")
def address(forks):
    with gradtide.local_servers(2, forks=forks) as servers:
        yield servers.address


def train(address, workers, mode, compress, optimizer="sgd", steps=12, dtype=torch.float32, **options):
    name = training.new_name()
    options = {"sync": Servers(mode, name=name), "store": address, "compress": compress, **options}
    return workers.run(training.together, 2, name, "mlp", optimizer, dtype, steps, options)


def loss_of(values):
    net = training.build("mlp", torch.float32)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(value)
        x, y = next(training.batches(torch.float32, 1))
        return nn.functional.cross_entropy(net(x), y).item()


@pytest.mark.parametrize(
    ("mode", "compress", "optimizer", "options"),
    [
        ("bsp", "int8", "adam", {}),
        ("bsp", "topk:0.05", "momentum", {}),
        ("bsp", "onebit", "sgd", {"share_parameters": False}),
        ("bsp", "topk:0.05", "sgd", {"clip_norm": 5.0}),
        ("bounded:2", "topk:0.1", "sgd", {}),
        ("async", "topk:0.1", "sgd", {}),
    ],
)
def test_compressed_training_learns_and_says_what_it_saves(address, workers, mode, compress, optimizer, options):
    _, losses = training.alone("mlp", optimizer, torch.float32, 12)
    found = train(address, workers, mode, compress, optimizer, **options)
    assert loss_of(found[0][0]) < 0.9 * losses[0]
    ways = "to the servers, and whole values back" if mode == "async" else "both ways"
    assert f"{compress} {ways}" in found[0][1]
    assert "MB a step instead of 1.63" in found[0][1]
    if mode == "bsp":
        assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


def test_all_of_the_values_are_as_without_compression(address, workers):
    dense = train(address, workers, "bsp", None, steps=5)
    whole = train(address, workers, "bsp", "topk:1", steps=5)
    assert all(torch.equal(a, b) for a, b in zip(dense[0][0], whole[0][0], strict=True))


def wrapped(address, compress, lr=0.5, net=None, **options):
    net = net or nn.Linear(40, 20)
    rule = torch.optim.SGD(net.parameters(), lr=lr)
    sync = Servers("bsp", address, name=training.new_name())
    return net, rule, gradtide.DataParallel(net, rule, sync, compress=compress, job=Job(), **options)


class Two(nn.Module):
    """The second is not always used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(300)), nn.Parameter(torch.zeros(300))

    def forward(self, x, both):
        return (self.first * x).sum() + ((self.second * x).sum() if both else 0.0)


RATES = [(0.5, True), (0.5, False), (0.25, True), (0.0, True), (1.0, False)] * 3  # and whether both have a gradient


@pytest.mark.parametrize("share", [None, False], ids=["servers step", "workers step"])
def test_with_sgd_nothing_is_lost_whatever_the_learning_rate_and_whoever_has_a_gradient(forks, share, tmp_path):
    """Integers and powers of two: what was applied, and what is left by the last rate, is what plain SGD does."""
    with gradtide.local_servers(2, forks=forks) as servers:
        check_rates(servers.address, share, tmp_path)


def check_rates(address, share, tmp_path):
    net = Two()
    _, rule, model = wrapped(address, "topk:0.1", 0.5, net, share_parameters=share)
    way, wanted = model._synchroniser.way, {"first": torch.zeros(300), "second": torch.zeros(300)}
    for number, (rate, both) in enumerate(RATES):
        rule.param_groups[0]["lr"] = rate
        torch.manual_seed(number)
        x = torch.randint(-8, 9, (300,)).float()
        model(x, both).backward()
        model.step()
        wanted["first"] -= rate * x
        wanted["second"] -= rate * x if both else 0.0
    left, of_servers = way.store.residuals(), left_by_servers(way.store, tmp_path)
    for name, parameter in net.named_parameters():
        key = way._lodging.key(name)
        assert left[key].abs().sum() > 0
        if share is None:  # who is in no round sees the exact value, of which the servers leave out nothing
            with gradtide.connect(address) as visitor:
                found = visitor.pull(key)
        else:
            found = parameter.detach() - of_servers[f"{key}[0].published residual"]
            found -= way.smaller._carried.get(key, 0.0)
        assert torch.equal(found - left[key], wanted[name]), name
    model.close()


def left_by_servers(store, folder):
    store.checkpoint(folder)
    return {name: value for path in folder.rglob("*.safetensors") for name, value in load_file(path).items()}


@pytest.mark.parametrize(
    ("compress", "mode", "rule", "line"),
    [
        ("powersgd", "bsp", torch.optim.SGD, "which servers can't; leave Servers out"),
        ("onebit", "bsp", torch.optim.Adam, "does not go with Adam"),
        (gradtide.Compress("int8", after=5), "bsp", torch.optim.SGD, "leave after= out"),
    ],
)
def test_what_does_not_go_with_servers_is_refused_in_one_line(address, compress, mode, rule, line):
    net = nn.Linear(4, 4)
    with pytest.raises(ConfigError, match=line):
        gradtide.DataParallel(net, rule(net.parameters(), lr=0.1), Servers(mode, address), compress=compress, job=Job())


def test_auto_is_none_over_servers_and_says_why(address):
    _, _, model = wrapped(address, "auto")
    assert "compress='auto': none, since nothing predicts the time of servers" in model.explain()
    model.close()


def test_a_training_that_goes_on_must_be_compressed_as_before(address):
    net = nn.Linear(40, 20)
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    name = training.new_name()
    gradtide.DataParallel(net, rule, Servers("bsp", address, name=name), job=Job()).close()
    with pytest.raises(ConfigError, match="compress='int8', but the training on these servers has compress=None"):
        gradtide.DataParallel(net, rule, Servers("bsp", address, name=name, resume=True), compress="int8", job=Job())


def test_a_gradient_that_is_thrown_away_is_refused_where_servers_keep_what_was_left_out(address):
    _, rule, model = wrapped(address, "topk:0.1", share_parameters=False)
    model(torch.ones(1, 40)).sum().backward()
    rule.zero_grad()
    with pytest.raises(ConfigError, match="was dropped without a step"):
        model(torch.ones(1, 40)).sum().backward()
    model.close()
    _, rule, model = wrapped(address, "int8", share_parameters=False)
    for _ in range(2):
        model(torch.ones(1, 40)).sum().backward()
        rule.zero_grad()
    model.close()
