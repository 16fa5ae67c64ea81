"""Mistakes of a newcomer, each answered in one line that says what to write, before anything has changed."""

import pytest
import torch
from torch import nn

import gradtide
from gradtide.errors import ConfigError

pytestmark = pytest.mark.quick
X, Y = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)


def wrap(sync="auto", **options):
    net = nn.Linear(4, 2)
    return gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), 0.1), sync, **options)


def first(model):
    return gradtide.DataParallel(model, torch.optim.SGD(nn.Linear(4, 2).parameters(), 0.1))


def fit(**options):
    return gradtide.fit(nn.Linear(4, 2), (X, Y), epochs=1, **options)


def step(backwards):
    model = wrap()
    for _ in range(backwards):
        model(X).sum().backward()
    model.step()
    model.step()


MISTAKES = [
    (lambda: wrap(sync=3), "gradtide.Servers('bsp') or gradtide.Local(50)"),
    (lambda: wrap(sync=gradtide.Servers), "sync=Servers makes no sense"),
    (lambda: wrap("bsp"), "say sync=gradtide.Servers('bsp')"),
    (lambda: wrap("async"), "say sync=gradtide.Servers('async')"),
    (lambda: wrap("bounded:2"), "say sync=gradtide.Servers('bounded:2')"),
    (lambda: wrap("servers"), "say sync=gradtide.Servers('bsp')"),
    (lambda: wrap("local"), "sync=gradtide.Local(50)"),
    (lambda: fit(sync="bsp"), "say sync=gradtide.Servers('bsp')"),
    (lambda: gradtide.Servers("bps"), "say 'bsp', 'async' or 'bounded:2'"),
    (lambda: gradtide.Servers("bsp", 5), "address=5 is no address"),
    (lambda: wrap(clip_norm="1"), "clip_norm is '1'; it must be a number above 0"),
    (lambda: wrap(clip_norm=float("nan")), "it must be a number above 0"),
    (lambda: first(nn.Linear(4, 2).parameters()), "a torch.nn.Module, not generator"),
    (lambda: first(nn.Linear), "not the class Linear"),
    (lambda: gradtide.DataParallel(nn.Linear(4, 2)), "optimizer is missing; say DataParallel(model, optimizer)"),
    (lambda: wrap(timeouts=5), "say timeouts=gradtide.Timeouts(step_s=60)"),
    (lambda: fit(timeouts=5), "say timeouts=gradtide.Timeouts(step_s=60)"),
    (lambda: gradtide.connect("unix:/nowhere", timeouts=5), "say timeouts=gradtide.Timeouts(step_s=60)"),
    (lambda: gradtide.Timeouts(step_s="5"), "Timeouts(step_s='5') makes no sense"),
    (lambda: wrap(share_parameters="yes"), "share_parameters='yes' makes no sense; say True or False"),
    (lambda: wrap(overlap="no"), "overlap='no' makes no sense; say True or False"),
    (lambda: fit(balance="yes"), "balance='yes' makes no sense; say True or False"),
    (lambda: gradtide.shard(5), "a loader of global batches is needed, not int"),
    (lambda: gradtide.shard(X), "a loader of global batches is needed, not Tensor"),
    (lambda: gradtide.shard((X, Y)), "DataLoader(TensorDataset(*tensors), batch_size=64)"),
    (lambda: gradtide.shard([X], whole=3), "whole=3 makes no sense"),
    (lambda: gradtide.shard([X], check="yes"), "check='yes' makes no sense"),
    (lambda: step(0), "step() without a backward"),
    (lambda: step(1), "step() without a backward"),
    (lambda: wrap().weigh("many"), "a mean is over 0 terms or more"),
    (lambda: wrap().load_sync_state({"x": 3}), "nothing that model.sync_state() gave"),
    (lambda: gradtide.fit(wrap(), (X, Y)), "model.module"),
    (lambda: fit(checkpoints=3), "checkpoints=gradtide.Checkpoints('folder', every=100)"),
    (lambda: gradtide.Checkpoints("folder", every="x"), "every='x' makes no sense; give a whole number"),
    (lambda: gradtide.Checkpoints(3), "name a folder, and say resume=True or a folder"),
    (lambda: gradtide.Checkpoints("folder", resume=3), "name a folder, and say resume=True or a folder"),
    (lambda: gradtide.Checkpoints("", every=1), "every=1 needs a folder"),
    (lambda: fit(checkpoints=gradtide.Checkpoints(__file__, every=1)), "is a file; name a folder"),
    (
        lambda: fit(checkpoints=gradtide.Checkpoints("nosuch://x", every=1)),
        "no address that fsspec knows",
    ),
    (lambda: gradtide.EarlyStopping(patience="x"), "patience='x' makes no sense"),
    (lambda: gradtide.CSVLog(3), "3 is no path"),
    (lambda: gradtide.predict(nn.Linear(4, 2).parameters(), X), "the first argument is a torch.nn.Module"),
    (lambda: gradtide.connect(3), "3 is no address"),
    (lambda: gradtide.local_servers("2"), "servers='2' makes no sense; give a whole number"),
    (lambda: gradtide.mean_over_workers("x"), "'x' has no mean"),
    (lambda: gradtide.replicate(nn.Linear(4, 2), "cpu"), "say gradtide.find_devices('cpu')"),
    (lambda: gradtide.DevicePool(2), "say DevicePool(gradtide.find_devices(2))"),
    (lambda: gradtide.Group.join("name", "0", 2), "rank='0' makes no sense"),
    (lambda: gradtide.Group.join("alone", 0, 1).all_reduce([1.0]), "all_reduce needs a tensor, not list"),
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_to_write(mistake, said):
    with pytest.raises(ConfigError) as caught:
        mistake()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_without_a_backward_is_no_mistake_where_there_may_be_nothing_to_learn():
    model = wrap()
    model.weigh(0)
    model.step()  # a batch without a term
    with model.no_sync():
        model(X).sum().backward()
    model.step()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.step()  # gradients of the program's own
    model.requires_grad_(False)
    model.step()  # all is frozen


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    def train(optimizer, resume, **options):
        checkpoints = gradtide.Checkpoints(str(tmp_path), every=1, resume=resume)
        gradtide.fit(nn.Linear(4, 2), (X, Y), optimizer=optimizer, checkpoints=checkpoints, progress=False, **options)

    train("adam", False, epochs=1)
    with pytest.raises(ConfigError, match="of another optimizer, one with betas, eps, amsgrad"):
        train("sgd", True, epochs=2)
    train("adam", True, epochs=2)
