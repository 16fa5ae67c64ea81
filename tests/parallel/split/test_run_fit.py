"""fit(split=): the same curves as on one device, checkpoints that go on under another layout, and what is refused."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import gradtide
from gradtide.errors import ConfigError
from gradtide.train import Checkpoints

X = torch.randn(100, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.randint(0, 5, (100,), generator=torch.Generator().manual_seed(4))


def build():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 5)]
    return nn.Sequential(*layers).double()


def fit(split, devices, epochs=2, optimizer="Adam", **options):
    net = build()
    rule = optimizer if isinstance(optimizer, str) else optimizer(net.parameters())
    data = {"test_data": (X, Y), "batch_size": 16, "epochs": epochs}
    lr = 0.1 if isinstance(optimizer, str) else None
    history = gradtide.fit(net, (X, Y), devices=devices, lr=lr, optimizer=rule, split=split, **data, **options)
    return history, net.state_dict(), rule


def largest(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_a_run_is_that_of_one_device_and_the_model_and_the_optimizer_have_what_was_learnt():
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.1)

    history, state, rule = fit("0..5", 1, optimizer=adam)
    found, split_state, split_rule = fit("0..2 | 3..5 /2 @1,2", 3, optimizer=adam)
    assert found.loss == pytest.approx(history.loss, abs=1e-12)
    assert found.test_loss == pytest.approx(history.test_loss, abs=1e-12)
    assert (found.accuracy, found.test_accuracy) == (history.accuracy, history.test_accuracy)
    assert largest(state, split_state) < 1e-10
    states, others = rule.state_dict()["state"], split_rule.state_dict()["state"]
    assert states.keys() == others.keys()
    assert len(states) == 6
    for number in states:
        assert torch.allclose(states[number]["exp_avg"], others[number]["exp_avg"], atol=1e-12)


def test_a_checkpoint_goes_on_under_another_layout(tmp_path):
    history, state, _ = fit("0..5", 1)
    fit("0..2 | 3..5", 2, epochs=1, checkpoints=Checkpoints(str(tmp_path), every=3))
    found, resumed, _ = fit("0..5 x2 /2", 4, checkpoints=Checkpoints(str(tmp_path), every=100, resume=True))
    assert largest(state, resumed) < 1e-10
    assert found.loss == pytest.approx(history.loss, abs=1e-12)


def test_a_checkpoint_of_copies_is_refused_by_a_split_run(tmp_path):
    net = build()
    gradtide.fit(net, (X, Y), devices=2, batch_size=16, checkpoints=Checkpoints(str(tmp_path), every=3))
    with pytest.raises(ConfigError, match="made with split False, not True"):
        fit("0..5 x2", 2, checkpoints=Checkpoints(str(tmp_path), resume=True))


@pytest.mark.parametrize(
    "option",
    [
        {"sync": "ring"}, {"compress": "int8"}, {"accumulate": 2}, {"balance": True},
        {"strategy": "ring"}, {"scale_batch": True},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_what_is_about_copies_of_a_model_is_refused(option):
    name, value = next(iter(option.items()))
    with pytest.raises(ConfigError, match=f"{name}={value!r} is for copies of a whole model"):
        fit("0..5 x2", 2, **option)


def test_copies_share_batch_norm_where_fit_is_asked_to_and_layouts_in_text_have_micro_batches():
    def trained(split, devices, **options):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)).double()
        told = []
        gradtide.fit(net, (X, Y), devices=devices, batch_size=20, lr=0.1, split=split, emit=told.append, **options)
        assert [type(event).__name__ for event in told].count("SplitDecided") == 1
        return net.state_dict()

    assert largest(trained("..", 1), trained("x2", 2, batch_norm="shared")) < 1e-10
    with pytest.raises(ConfigError, match=r"statistics of each of 2 copies; say batch_norm='shared', or take one copy"):
        trained("x2", 2)
    with pytest.raises(ConfigError, match="statistics of each of 4 micro-batches"):
        trained("..1 | 2.. ; 4", 2)


def test_auto_trains_too():
    history, state, _ = fit("0..5", 1)
    found, split_state, _ = fit("auto", 2)
    assert largest(state, split_state) < 1e-10
    assert found.loss == pytest.approx(history.loss, abs=1e-12)


def train(folder, split, *more):
    command = [sys.executable, "-m", "gradtide", "train", "--model", "lenet", "--split", split, "--workers", "2"]
    options = ["--epochs", "1", "--output", str(folder), "--name", "run", "--json", *more]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=240)


def test_gradtide_train_splits_over_workers(tmp_path):
    done = train(tmp_path, "0..4 | 5..")
    assert done.returncode == 0, done.stderr
    figures = next(iter(json.loads(done.stdout)["runs"].values()))
    assert figures["samples"] == 1437  # the digits, once: not once for each worker


@pytest.mark.slow
def test_gradtide_train_says_what_is_wrong_with_a_layout_in_one_line(tmp_path):
    done = train(tmp_path, "0..4 | 6..")
    assert done.returncode == 2
    assert "the stage before it ends with 4; stages follow one another" in done.stderr
    assert "Traceback" not in done.stderr
