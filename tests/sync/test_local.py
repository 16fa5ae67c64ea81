"""Local steps: what one process gives that plays all workers, bit for bit."""

import copy
import warnings

import pytest
import torch
import training
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.errors import ConfigError
from gradtide.sync import Job, Local
from gradtide.testing.local_oracle import LocalPlan, play_local

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


def played(model, optimizer, size, steps, local, batch=29):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = play_local(
            training.build(model, torch.float64),
            lambda parameters: training.OPTIMIZERS[optimizer](parameters, 0.05),
            functional.cross_entropy,
            training.batches(torch.float64, steps, batch),
            size,
            LocalPlan(local.every, local.rule, local.after),
        )
    finally:
        torch.set_num_threads(threads)
    return [parameter.detach() for parameter in made.parameters()]


def ran(workers, model, optimizer, size, steps, local, batch=29):
    name = training.new_name()
    return workers.run(training.locally, size, name, model, optimizer, torch.float64, steps, local, 0.05, batch)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("optimizer", "local"),
    [
        ("momentum", Local(4)),
        ("adamw", Local(3, NESTEROV)),
        ("momentum", Local(3, gradtide.update("adam", lr=0.01), after=4)),
    ],
)
def test_workers_that_meet_now_and_then_do_what_one_process_that_plays_them_does(workers, size, optimizer, local):
    found = ran(workers, "mlp", optimizer, size, 11, local)
    wanted = played("mlp", optimizer, size, 11, local)
    for parameters, _, _ in found:
        assert all(torch.equal(a, b) for a, b in zip(parameters, wanted, strict=True))


def test_workers_are_apart_between_meetings_and_alike_at_each(workers):
    sums = torch.tensor([sums for _, _, sums in ran(workers, "mlp", "sgd", 2, 9, Local(3, after=2))])
    alike = (sums[0] == sums[1]).tolist()
    assert alike == [True, True, False, False, True, False, False, True, False]


@pytest.mark.parametrize("batch", [29, 2])  # of two samples one of three workers has none
def test_meeting_at_every_step_with_plain_sgd_is_training_in_one_process(workers, batch):
    found = ran(workers, "mlp", "sgd", 3, 12, Local(1), batch)
    net = training.build("mlp", torch.float64)
    rule = training.OPTIMIZERS["sgd"](net.parameters(), 0.05)
    for x, y in training.batches(torch.float64, 12, batch):
        rule.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        rule.step()
    for parameters, _, _ in found:
        assert max((a - b).abs().max() for a, b in zip(parameters, net.parameters(), strict=True)) < 1e-12


def test_an_outer_sgd_with_a_rate_of_one_is_averaging(workers):
    plain = ran(workers, "mlp", "momentum", 3, 8, Local(4))
    outer = ran(workers, "mlp", "momentum", 3, 8, Local(4, gradtide.update("sgd", lr=1.0)))
    assert all(torch.equal(a, b) for a, b in zip(plain[0][0], outer[0][0], strict=True))


def test_accumulated_gradients_and_terms_count_as_samples():
    """One worker by itself: what it would do without."""
    torch.manual_seed(0)
    data = [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(6)]
    nets = [nn.Linear(4, 3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    rule = torch.optim.SGD(nets[0].parameters(), lr=0.1, momentum=0.9)
    for number, (x, y) in enumerate(data):
        (functional.cross_entropy(nets[0](x), y) / 2).backward()
        if number % 2:
            rule.step()
            rule.zero_grad()
    model = gradtide.DataParallel(
        nets[1], torch.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.9), Local(2), job=Job()
    )
    for number, (x, y) in enumerate(data):
        if number % 2:
            model.weigh(len(x))
            (functional.cross_entropy(model(x), y) / 2).backward()
            model.step()
        else:
            with model.no_sync():
                (functional.cross_entropy(model(x), y) / 2).backward()
    model.close()
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))


def test_running_statistics_are_averaged_by_samples_and_counters_are_the_largest(workers):
    found = workers.run(training.normed_locally, 2, training.new_name())
    (mean, counted, own, samples), (same, _, other, others) = found
    assert torch.equal(mean, same)
    assert torch.allclose(mean, (own * samples + other * others) / (samples + others))
    assert counted == 2


def test_saving_in_the_middle_of_a_window_says_whose_values_these_are(recwarn):
    net = nn.Linear(2, 2)
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2), job=Job())
    for step in range(2):
        model(torch.ones(1, 2)).sum().backward()
        model.step()
        before = copy.copy(recwarn.list)
        model.state_dict()
        assert (len(recwarn.list) > len(before)) == (step == 0)
    model(torch.ones(1, 2)).sum().backward()
    model.step()
    model.meet()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.state_dict()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Local(0), "every=0 makes no sense"),
        (lambda: Local(2.5), "every=2.5 makes no sense"),
        (lambda: Local(2, after=-1), "after=-1 makes no sense"),
        (lambda: Local(2, gradtide.update("mean")), "outer is an optimizer"),
        (lambda: Local(2, "sgd"), "outer is an optimizer"),
        (lambda: Local(2, gradtide.update("sgd", lr=1.0, reduce="sum")), "leave reduce= out"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_what_does_not_go_together_is_refused_before_anything_is_changed():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    rules = [torch.optim.SGD(part.parameters(), lr=0.1) for part in net]
    with pytest.raises(ConfigError, match="one optimizer"):
        gradtide.DataParallel(net, rules, Local(2, over=gradtide.Servers("bsp")), job=Job())
    with pytest.raises(ConfigError, match="leave share_parameters= out"):
        gradtide.DataParallel(
            net, torch.optim.SGD(net.parameters(), lr=0.1), Local(2), share_parameters=True, job=Job()
        )


class Both:
    """Two optimizers as one, for the oracle."""

    def __init__(self, parameters):
        self.rules = training.two_rules(list(parameters))

    def step(self):
        for rule in self.rules:
            rule.step()

    def zero_grad(self):
        for rule in self.rules:
            rule.zero_grad()


@pytest.mark.parametrize("by_hand", [False, True])
def test_with_several_optimizers_a_step_is_over_with_that_of_the_last(workers, by_hand):
    found = workers.run(training.locally_by_two, 2, training.new_name(), Local(3, NESTEROV), by_hand)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = play_local(
            training.build("mlp", torch.float64),
            Both,
            functional.cross_entropy,
            training.batches(torch.float64, 7),
            2,
            LocalPlan(3, NESTEROV),
        )
    finally:
        torch.set_num_threads(threads)
    for parameters in found:
        assert all(torch.equal(a, b) for a, b in zip(parameters, made.parameters(), strict=True))
