"""fit's optimizer is the user's: by name, by a function or as an object, with the rates that it has."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam

import gradtide
from gradtide.errors import ConfigError
from gradtide.events import BatchDone, EpochDone
from gradtide.parallel.devices.losses import Loss
from gradtide.train.optimizers import Optimizers

pytestmark = pytest.mark.quick
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 3, (60,), generator=GENERATOR)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def values(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def plainly(optimizer, epochs=2, before=None, net=None):
    """The loop that fit stands for, in plain PyTorch; every batch is the whole data."""
    net = net or model()
    stepper = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(list(net.parameters()))
    for epoch in range(epochs):
        if before:
            before(stepper, epoch)
        stepper.zero_grad()
        functional.cross_entropy(net(X), Y).backward()
        stepper.step()
    return net, stepper


def fitted(optimizer, net=None, **options):
    net, rates = net or model(), []

    def emit(event):
        if isinstance(event, BatchDone):
            rates.append(event.lr)

    gradtide.fit(net, (X, Y), batch_size=60, optimizer=optimizer, **{"epochs": 2, "emit": emit, **options})
    return net, rates


def two_groups(parameters):
    return Adam([{"params": parameters[:2], "lr": 0.02}, {"params": parameters[2:], "lr": 0.003, "betas": (0.8, 0.9)}])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("wanted", "plain", "lr", "first"),
    [
        (lambda ps: Adam(ps, lr=1e-3), partial(Adam, lr=1e-3), None, 1e-3),
        (two_groups, two_groups, None, 0.02),
        ("Adam", Adam, None, 1e-3),
        ("sgd", SGD, None, 1e-3),
        ("Adagrad", torch.optim.Adagrad, None, 0.01),
        ("Adam", partial(Adam, lr=0.2), 0.2, 0.2),
        (SGD, partial(SGD, lr=0.2), 0.2, 0.2),
        (partial(SGD, momentum=0.9), partial(SGD, lr=0.2, momentum=0.9), 0.2, 0.2),
        (lambda ps: SGD(ps, lr=0.3), partial(SGD, lr=0.3), 0.3, 0.3),
    ],
)
def test_rates_are_the_users_or_the_optimizers_own(devices, wanted, plain, lr, first):
    net, rates = fitted(wanted, devices=devices, lr=lr)
    assert rates == [first] * 2
    assert (values(net) - values(plainly(plain)[0])).abs().max() < 1e-12


@pytest.mark.parametrize("devices", [1, 2])
def test_a_schedule_multiplies_the_rate_of_every_group(devices):
    def warm(stepper, epoch):
        for group, rate in zip(stepper.param_groups, (0.02, 0.003), strict=True):
            group["lr"] = rate * (0.01 + 0.99 * epoch / 2) if epoch < 2 else rate

    net, rates = fitted(two_groups, devices=devices, warmup_epochs=2, epochs=4)
    assert rates == pytest.approx([0.0002, 0.0101, 0.02, 0.02])
    assert (values(net) - values(plainly(two_groups, 4, warm)[0])).abs().max() < 1e-12


def test_rates_that_grow_with_the_batch_grow_from_each_groups_own():
    made = []

    def remembered(parameters):
        made.append(two_groups(parameters))
        return made[-1]

    options = {"devices": 2, "scale_batch": True, "lr_scaling": "linear", "batch_size": 30}
    gradtide.fit(model(), (X, Y), optimizer=remembered, **options)
    assert [[group["lr"] for group in one.param_groups] for one in made] == [[0.04, 0.006]] * 2


def test_a_run_that_goes_on_has_the_rates_of_every_group(tmp_path):
    whole, _ = fitted(two_groups, warmup_epochs=3, epochs=5)

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, EpochDone) and event.epoch == 3:
            raise Stop

    checkpoints = partial(gradtide.Checkpoints, str(tmp_path), every=2)
    with pytest.raises(Stop):
        fitted(two_groups, warmup_epochs=3, epochs=5, checkpoints=checkpoints(), emit=stop)
    resumed, rates = fitted(two_groups, warmup_epochs=3, epochs=5, checkpoints=checkpoints(resume=True))
    assert torch.equal(values(resumed), values(whole))
    assert rates == pytest.approx([0.02 * 0.67, 0.02, 0.02])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("make", [lambda ps: SGD(ps, lr=0.1, momentum=0.9), two_groups])
def test_an_optimizer_of_the_model_is_used_and_has_the_state_afterwards(devices, make):
    """It begins with the state that it has, and a plain loop can go on with it."""
    plain, stepper = plainly(make)
    plainly(stepper, 4, net=plain)
    net, own = plainly(make)
    fitted(own, net, devices=devices)
    assert own.state_dict()["param_groups"] == stepper.state_dict()["param_groups"]
    plainly(own, 2, net=net)
    assert (values(net) - values(plain)).abs().max() < 1e-12
    assert set(own.state) == set(net.parameters())
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        for name, value in stepper.state[theirs].items():
            assert torch.allclose(own.state[mine][name], value, rtol=0, atol=1e-12)


def test_a_warm_up_leaves_the_objects_own_rates_alone_and_its_scheduler_is_followed():
    net = model()
    own = SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
    rates = []

    def emit(event):
        if isinstance(event, BatchDone):
            rates.append(event.lr)
        if isinstance(event, EpochDone):
            own.step()  # the scheduler asks for it; there are no gradients here
            scheduler.step()

    fitted(own, net, emit=emit, epochs=3, warmup_epochs=1, devices=2)
    assert rates == pytest.approx([0.001, 0.05, 0.025])
    assert own.param_groups[0]["lr"] == pytest.approx(0.0125)


def test_a_scheduler_of_an_optimizer_that_a_function_made_is_followed_on_all_devices():
    made = []

    def remembered(parameters):
        made.append(SGD(parameters, lr=0.1))
        return made[-1]

    rates = []

    def emit(event):
        if isinstance(event, BatchDone):
            rates.append((event.lr, [one.param_groups[0]["lr"] for one in made]))
        if isinstance(event, EpochDone):
            made[1].param_groups[0]["lr"] *= 0.5

    fitted(remembered, devices=2, emit=emit)
    assert rates == [(0.1, [0.1, 0.1]), (0.05, [0.05, 0.05])]


def test_an_interrupted_run_leaves_the_optimizers_state_too():
    net = model()
    own = SGD(net.parameters(), lr=0.1, momentum=0.9)

    def interrupt(event):
        if isinstance(event, BatchDone) and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(own, net, epochs=9, emit=interrupt)
    plain, stepper = plainly(lambda ps: SGD(ps, lr=0.1, momentum=0.9), 3)
    assert torch.allclose(values(net), values(plain), rtol=0, atol=1e-12)
    first = next(iter(plain.parameters()))
    assert torch.allclose(own.state[net[0].weight]["momentum_buffer"], stepper.state[first]["momentum_buffer"])


class Halving(SGD):
    """Keeps more than an optimizer's state."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.taken = 0

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5**self.taken)
        return super().step(closure)


def test_what_a_class_of_the_users_own_keeps_goes_along_and_comes_back():
    plain, stepper = plainly(Halving, 5)
    net, own = plainly(Halving, 3)
    fitted(own, net, devices=2)
    assert (values(net) - values(plain)).abs().max() < 1e-12
    assert own.taken == stepper.taken == 5


def hooked(net):
    made = SGD(net.parameters(), lr=0.1)
    made.register_step_post_hook(lambda *_: None)
    return made


def stepped(net):
    return plainly(lambda ps: SGD(ps, lr=0.1, momentum=0.9), 1, net=net)[1]


class Closed(SGD):
    def step(self, closure):
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda net: SGD(model().parameters(), lr=0.1), {}, "4 of SGD's parameters are not the model's; make it with"),
        (lambda net: SGD(net.parameters(), lr=0.1), {"lr": 0.2}, r"lr=0.2, but .* own rate \(0.1\); leave lr out"),
        (lambda net: lambda ps: SGD(ps, lr=0.1), {"lr": 0.2}, r"lr=0.2, but .* own rate \(0.1\); leave lr out"),
        (lambda net: partial(SGD, lr=0.1), {"lr": 0.2}, "lr=0.2, but"),
        (lambda net: two_groups, {"lr": 0.02}, r"own rate \(0.003, 0.02\)"),
        (lambda net: "LBFGS", {}, "LBFGS computes the loss anew within a step"),
        (lambda net: torch.optim.LBFGS(net.parameters()), {}, "LBFGS computes the loss anew within a step"),
        (lambda net: Closed, {}, "Closed computes the loss anew within a step"),
        (hooked, {}, "SGD has step hooks, but fit steps copies of it"),
        (stepped, {"sync": gradtide.Servers("bsp")}, "SGD has state of earlier steps, but servers that step begin"),
        (lambda net: lambda ps: None, {}, "gave a NoneType; it must give a torch.optim.Optimizer"),
        (
            lambda net: "Adam",
            {"loss": "msee"},
            "unknown loss 'msee'; choose one of bce, bce_with_logits, cross_entropy",
        ),
        (lambda net: "Adam", {"loss": nn.MSELoss}, "the loss is <class .*MSELoss'>; give a name such as 'mse'"),
    ],
)
def test_what_fit_cannot_do_is_one_line_and_changes_nothing(make, options, message):
    net = model()
    optimizer = make(net)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ConfigError, match=message) as caught:
        fitted(optimizer, net, **options)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_rate_that_is_a_tensor_is_set_in_place():
    net = model()
    optimizers = Optimizers(lambda ps: Adam(ps, lr=torch.tensor(0.25), foreach=False), net, None)
    made = optimizers.make(net)
    rate = made.param_groups[0]["lr"]
    assert optimizers.set_rates([made], 0.5) == 0.125
    assert optimizers.set_rates([made], 1.0) == 0.25
    assert made.param_groups[0]["lr"] is rate


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mse", functional.mse_loss),
        ("MSE_loss", functional.mse_loss),
        ("cross_entropy", functional.cross_entropy),
        ("l1", functional.l1_loss),
        ("bce_with_logits", functional.binary_cross_entropy_with_logits),
        ("binary_cross_entropy", functional.binary_cross_entropy),
        ("nll", functional.nll_loss),
        ("smooth_l1", functional.smooth_l1_loss),
        ("huber", functional.huber_loss),
        ("kl_div", functional.kl_div),
    ],
)
def test_losses_have_the_names_of_torch(name, function):
    assert Loss(name)._fn is function


def test_fit_takes_a_loss_by_name():
    torch.manual_seed(0)
    plain, by_name = nn.Linear(5, 1).double(), nn.Linear(5, 1).double()
    by_name.load_state_dict(plain.state_dict())
    targets = X.sum(1, keepdim=True)
    gradtide.fit(by_name, (X, targets), batch_size=60, lr=0.1, loss="mse")
    optimizer = SGD(plain.parameters(), lr=0.1)
    functional.mse_loss(plain(X), targets).backward()
    optimizer.step()
    assert torch.allclose(values(by_name), values(plain), rtol=0, atol=1e-12)
    assert gradtide.evaluate(plain, (X, targets), loss="l1").loss == pytest.approx(
        functional.l1_loss(plain(X), targets).item()
    )
