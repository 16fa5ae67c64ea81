"""fit's loss is the whole batch's, however it is cut: on one device, on several, and on several workers."""

import json
import math
import subprocess
import sys
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.parallel.devices.losses import Loss, _on
from loaded_python import loaded_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fit_cases  # noqa: E402
from fit_cases import BATCH, CASES, IGNORED, LABELS, OVER_SERVERS, VALUES, X, begin, train  # noqa: E402


@cache
def alone(case, **options):
    return train(case, **options)


@cache
def plain(case):
    """The loop that fit stands for: parameters, the losses of the batches, and Adam's averages."""
    net, targets, options = begin(case), CASES[case][1], CASES[case][2]
    loss_fn = options.get("loss", functional.cross_entropy)
    loss_fn = {"mse": functional.mse_loss, "huber": functional.huber_loss}.get(loss_fn, loss_fn)
    if "optimizer" in options:
        optimizer = fit_cases.groups(net.parameters())
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=options.get("lr", 0.1), momentum=0.9)
    rates = [group["lr"] for group in optimizer.param_groups]
    losses, batches = [], math.ceil(len(X) / BATCH)
    for step in range(2 * batches):
        factor = 0.01 + 0.99 * step / batches if step < batches else 1.0
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        chosen = slice(step % batches * BATCH, (step % batches + 1) * BATCH)
        optimizer.zero_grad()
        loss = loss_fn(net(X[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    averages = [optimizer.state[p].get("exp_avg") for p in net.parameters()]
    return [p.detach() for p in net.parameters()], losses, averages


def furthest(some, others):
    return max((one - other).abs().max().item() for one, other in zip(some, others, strict=True))


@pytest.mark.quick
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_devices_give_what_plain_pytorch_gives(case, devices):
    found, (values, losses, averages) = train(case, devices=devices), plain(case)
    assert furthest(found["values"], values) < 1e-10
    assert found["losses"] == pytest.approx(losses, abs=1e-10)
    assert found["history"] == pytest.approx(alone(case)["history"], abs=1e-10)
    assert found["tests"] == pytest.approx(alone(case)["tests"], abs=1e-10)
    assert not found["state"] or furthest(found["state"], averages) < 1e-10


@pytest.fixture(scope="module")
def found(tmp_path_factory, forks):
    """What two workers found."""
    folder = tmp_path_factory.mktemp("losses")
    with ExitStack() as stack:
        stores = {case: stack.enter_context(gradtide.local_servers(1, forks=forks)).address for case in OVER_SERVERS}
        command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", str(HERE / "fit_cases.py")]
        done = subprocess.run(
            [*command, str(folder), json.dumps(stores)], capture_output=True, text=True, cwd=folder, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(2)]


WAYS = [
    *((case, way) for case in CASES for way in ("auto", "ring")),
    *((case, "auto, 2 devices") for case in ("class weights", "sum")),
    *((case, "servers") for case in OVER_SERVERS),
]


@pytest.mark.parametrize(("case", "way"), WAYS)
def test_two_workers_give_what_one_process_gives(found, case, way):
    """Over servers a worker knows its own losses, worker 0 evaluates, and the optimizer's state is not here."""
    one, over_servers = (alone(case, warmup_epochs=0), True) if way == "servers" else (alone(case), False)
    for rank, worker in enumerate(found):
        mine = worker[case, way]
        assert furthest(mine["values"], one["values"]) < 1e-10
        if not over_servers:
            assert mine["history"] == pytest.approx(one["history"], abs=1e-10)
            assert not mine["state"] or furthest(mine["state"], one["state"]) < 1e-10
        if not over_servers or rank == 0:
            assert mine["tests"] == pytest.approx(one["tests"], abs=1e-10)


@pytest.mark.quick
def test_evaluation_is_over_all_terms_whatever_the_batches():
    net = begin("ignored")
    whole = functional.cross_entropy(net(X), IGNORED).item()
    for devices, batch_size in ((1, 25), (2, 7), (3, 4), (2, 1)):
        seen = gradtide.evaluate(net, (X, IGNORED), devices=devices, batch_size=batch_size)
        assert seen.loss == pytest.approx(whole, abs=1e-12)
        assert (seen.samples, seen.terms) == (25, int((IGNORED != -100).sum()))


def fit(loss, targets=VALUES, devices=2, batch_size=BATCH, **options):
    torch.manual_seed(0)
    net = nn.Linear(5, 4).double()
    data = DataLoader(TensorDataset(X, targets), batch_size)
    gradtide.fit(net, data, devices=devices, lr=0.01, loss=loss, **options)
    return net


def contrastive(outputs, targets):
    """Compares every sample with all others: no mean over samples."""
    return functional.cross_entropy(outputs @ targets.T, torch.arange(len(targets)))


def only_whole(outputs, targets):
    if len(outputs) < 3:
        raise ValueError("too few")
    return (outputs - targets).abs().mean()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (lambda o, t: functional.cross_entropy(o, t), {"targets": IGNORED}, "it is not a mean over samples"),
        (lambda o, t: (o - t).pow(2).sum(), {}, r"it is not a mean over samples.*; say loss_terms="),
        (contrastive, {}, "it is not a mean over samples"),
        (only_whole, {}, "can't be computed for one half of the samples alone"),
        (lambda o, t: (o - t).abs().mean(), {"loss_terms": "sum"}, "it is not what loss_terms says"),
        (lambda o, t: functional.nll_loss(o, t), {"targets": IGNORED, "loss_terms": len}, "not what loss_terms says"),
        (lambda o, t: (o - t).abs().mean(), {"batch_size": 2}, "with one sample a part it can't be seen whether"),
        (lambda o, t: (o - t).abs().mean(1), {}, r"the loss gave a tensor of shape \(4,\); it must give one number"),
        (lambda o, t: 1.0, {}, "the loss gave float"),
        (nn.L1Loss(reduction="none"), {}, "l1_loss with reduction='none' gives a loss for every sample"),
        ("mse", {"targets": VALUES[:, 0]}, r"outputs are \(4, 4\) and targets \(4,\): the loss would pair every"),
        ("mse", {"loss_terms": 3}, "loss_terms is 3; give a function"),
        ("mse", {"loss_terms": lambda t: -1}, "loss_terms gave -1.0"),
        (nn.Sequential(nn.Linear(4, 4)), {}, "the loss Sequential has parameters that ask for a gradient"),
    ],
)
def test_a_loss_that_parts_do_not_make_up_is_refused_in_one_line(loss, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        fit(loss, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.quick
def test_one_device_takes_any_loss():
    net = fit(contrastive, devices=1)
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.quick
@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_whose_targets_are_all_ignored_is_refused_before_anything_is_poisoned(devices):
    net = nn.Linear(5, 4).double()
    data = DataLoader(TensorDataset(X, torch.cat([LABELS[:8], torch.full((17,), -100)])), 8)
    with pytest.raises(DataError, match="no target of a batch counts"):
        gradtide.fit(net, data, devices=devices, lr=0.1)
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.quick
def test_comparing_draws_no_random_numbers_and_happens_at_the_first_three_steps_and_every_hundredth():
    calls, drawn = [], []

    def loss(outputs, targets):
        calls.append(len(targets))
        drawn.append(torch.rand(1).item())
        return (outputs - targets).abs().mean()

    torch.manual_seed(7)
    fit(loss, devices=1, batch_size=10, epochs=1)
    assert calls == [10, 10, 5]
    calls.clear(), drawn.clear()
    whole = Loss(loss)
    parts = gradtide.split_batch((X[:6], VALUES[:6]), gradtide.find_devices(1))
    torch.manual_seed(7)
    for _ in range(101):
        whole.begin(parts, split=True)
        whole(X[:6, :4], VALUES[:6])
    assert calls == [6, 3, 3] * 3 + [6] * 96 + [6, 3, 3] + [6]
    torch.manual_seed(7)
    asked = [number for number, size in zip(drawn, calls, strict=True) if size == 6]
    assert asked == [torch.rand(1).item() for _ in range(101)]


@pytest.mark.quick
def test_a_loss_that_draws_random_numbers_is_taken_for_what_loss_terms_says():
    def noisy(outputs, targets):
        return (outputs - targets + torch.rand_like(targets)).abs().mean()

    with pytest.raises(ConfigError, match="it is not a mean over samples"):
        fit(noisy)
    fit(noisy, loss_terms=len)


@pytest.mark.quick
def test_halves_are_told_apart_by_the_precision_of_the_numbers():
    torch.manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        outputs, targets = torch.randn(64, 3).to(dtype), torch.randn(64, 3).to(dtype)
        parts = gradtide.split_batch((outputs, targets), gradtide.find_devices(1))
        mean, signed = Loss(lambda o, t: (o - t).abs().mean()), Loss(lambda o, t: (o - t).mean())
        total = Loss(lambda o, t: (o - t).abs().sum() / 100)
        for loss in (mean, signed, total):
            loss.begin(parts, split=True)
        mean(outputs, targets), signed(outputs, targets)
        with pytest.raises(ConfigError, match="it is not a mean over samples"):
            total(outputs, targets)


@pytest.mark.quick
def test_class_weights_go_to_where_the_loss_is_computed():
    weight, meta = torch.ones(4), torch.device("meta")
    assert _on(nn.CrossEntropyLoss(weight=weight), meta).weight.device == meta
    assert _on(partial(functional.cross_entropy, weight=weight), meta).keywords["weight"].device == meta
    module = nn.CrossEntropyLoss(weight=weight)
    assert _on(module, torch.device("cpu")) is module


@pytest.mark.quick
def test_tokens_that_a_model_gives_flat_are_compared_by_sample():
    """As language models do: (samples * tokens, classes)."""
    outputs, targets = torch.randn(4 * 6, 4), fit_cases.SENTENCES[:4].clamp(min=0)
    loss = Loss(lambda o, t: functional.cross_entropy(o, t.flatten()))
    parts = gradtide.split_batch((X[:4], targets), gradtide.find_devices(1))
    loss.begin(parts, split=True)
    loss(outputs, targets)
    with pytest.raises(ConfigError, match="it is not a mean over samples"):
        loss(outputs, fit_cases.SENTENCES[:4])
