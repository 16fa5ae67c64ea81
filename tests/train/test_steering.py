"""fit with metrics, callbacks, schedules, clipping, sample weights and the rest: alike on devices and workers."""

import csv
import signal
import subprocess
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import steered_fit
import torch
from steered_fit import CASES, LABELS, X, plain, right
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

import gradtide
from gradtide.checkpoint.shelf import Shelf
from gradtide.errors import ConfigError, DataError
from gradtide.events import BatchDone
from gradtide.train.optimizers import Optimizers
from gradtide.train.position import Position
from gradtide.train.steering.callbacks import Callbacks
from gradtide.train.steering.rates import Rates
from gradtide.train.steering.schedules import RateSchedule
from loaded_python import loaded_python

HERE = Path(__file__).parent
alone = cache(steered_fit.train)


def assert_alike(found, one):
    """To 1e-10: parameters, buffers, every figure of every epoch, and what callbacks were told."""
    for name, tensor in one["state"].items():
        assert torch.allclose(found["state"][name].double(), tensor.double(), rtol=0, atol=1e-10), name
    assert list(found["columns"]) == list(one["columns"])
    for name, values in one["columns"].items():
        assert found["columns"][name] == pytest.approx(values, abs=1e-10), name
    assert found["stopped"] == one["stopped"]
    assert found["told"] == [pytest.approx(values, abs=1e-10) for values in one["told"]]


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_devices_give_what_one_gives_with_every_option(case, devices):
    assert_alike(steered_fit.train(case, devices=devices), alone(case))


def on_workers(folder, devices, cases, dies=False):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", str(HERE / "steered_fit.py")]
    done = subprocess.run(
        [*command, str(folder), str(devices), *cases], capture_output=True, text=True, cwd=folder, timeout=240
    )
    assert (done.returncode != 0) == dies, done.stdout + done.stderr
    return [] if dies else [torch.load(folder / f"found-{rank}.pt") for rank in range(2)]


def test_two_workers_give_what_one_gives_with_every_option(tmp_path):
    """And evaluate and predict do, for a loader that shuffles too."""
    for worker in on_workers(tmp_path, 1, CASES):
        for case, found in worker.items():
            assert_alike(found, alone(case))
    one = steered_fit.look()
    for rank in range(2):
        looked = torch.load(tmp_path / f"looked-{rank}.pt")
        assert looked["figures"] == pytest.approx(one["figures"], abs=1e-10)
        assert torch.allclose(looked["outputs"], one["outputs"], rtol=0, atol=1e-12)
        assert looked["alone"] == one["alone"]
        for name, tensor in one["bf16"]["state"].items():  # alike to bf16's digits
            assert torch.allclose(looked["bf16"]["state"][name], tensor, rtol=0, atol=0.02), name
        assert looked["bf16"]["loss"] == pytest.approx(one["bf16"]["loss"], rel=0.02)
        assert looked["bf16"]["loss"] == torch.load(tmp_path / "looked-0.pt")["bf16"]["loss"]
        assert looked["mean"] == {"b": pytest.approx(2 / 3), "a": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_workers_with_several_devices_give_what_one_gives_with_every_option(tmp_path, devices):
    for worker in on_workers(tmp_path, devices, CASES):
        for case, found in worker.items():
            assert_alike(found, alone(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["numpy, per step", "nested, plateau", "batch norm", "sample weights"])
def test_workers_of_whom_one_is_killed_go_on_within_an_epoch_bit_for_bit(tmp_path, case):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    expected = on_workers(whole, "keep:0", [case])
    on_workers(cut, "keep:10", [case], dies=True)
    assert Shelf(cut / case).newest().manifest.step in (4, 8)
    for found, one in zip(on_workers(cut, "keep:0", [case]), expected, strict=True):
        assert found[case]["columns"] == one[case]["columns"]
        assert all(torch.equal(found[case]["state"][name], tensor) for name, tensor in one[case]["state"].items())


# --- one at a time ---


class Stop(Exception):
    pass


@pytest.mark.parametrize("case", ["numpy, per step", "nested, plateau", "early stopping"])
@pytest.mark.parametrize("stop_at", [6, 9])
def test_a_run_that_is_resumed_within_an_epoch_goes_on_bit_for_bit(tmp_path, case, stop_at):
    """Schedules, metrics, what was seen of the epoch, and when it stops."""

    def emit(event):
        if isinstance(event, BatchDone) and event.step == stop_at:
            raise Stop

    whole = steered_fit.train(case, devices=2)
    with pytest.raises(Stop):
        steered_fit.train(case, devices=2, checkpoints=gradtide.Checkpoints(str(tmp_path), every=4), emit=emit)
    assert Shelf(tmp_path).newest().manifest.step in (4, 8)
    resumed = steered_fit.train(case, devices=2, checkpoints=gradtide.Checkpoints(str(tmp_path), every=4), resume=True)
    assert resumed["columns"] == whole["columns"]
    assert resumed["stopped"] == whole["stopped"]
    assert all(torch.equal(resumed["state"][name], tensor) for name, tensor in whole["state"].items())


def test_sample_weights_and_clipping_are_those_of_plain_pytorch():
    torch.manual_seed(1)
    net, other = plain().double(), plain().double()
    other.load_state_dict(net.state_dict())
    weights = torch.rand(37, dtype=torch.float64)
    gradtide.fit(net, (X, LABELS, weights), devices=2, batch_size=37, lr=0.5, clip_norm=0.05, epochs=2)
    optimizer = torch.optim.SGD(other.parameters(), 0.5)
    for _ in range(2):
        losses = nn.functional.cross_entropy(other(X), LABELS, reduction="none")
        ((losses * weights).sum() / weights.sum()).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["precision", "autocast around it"])
@pytest.mark.parametrize("devices", [1, 2])
def test_bf16_reaches_every_device(devices, how):
    seen = set()

    class Spy(nn.Module):
        def forward(self, x):
            seen.add((threading.current_thread().name, x.dtype))
            return x

    net = nn.Sequential(nn.Linear(5, 6), Spy(), nn.Linear(6, 3))
    data = X.float(), LABELS
    if how == "precision":
        gradtide.fit(net, data, devices=devices, batch_size=37, lr=0.1, precision="bf16")
    else:
        with torch.autocast("cpu", torch.bfloat16):
            gradtide.fit(net, data, devices=devices, batch_size=37, lr=0.1)
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert len(seen) == devices
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


def test_the_best_model_is_kept_and_put_back_and_the_epochs_are_in_a_csv_file(tmp_path):
    net, best = plain().double(), tmp_path / "best model.safetensors"
    data = X, LABELS
    watching = [
        gradtide.BestModel(best, restore=True),
        gradtide.CSVLog(tmp_path / "log.csv"),
        gradtide.EarlyStopping(patience=2),
    ]
    options = {"lr": 3.0, "batch_size": 9, "optimizer": "Adam", "progress": False}
    history = gradtide.fit(net, data, validation=data, epochs=30, callbacks=watching, **options)
    assert history.stopped.startswith("validation_loss was best in epoch")
    assert len(history.loss) == history.validation_loss.index(min(history.validation_loss)) + 3
    assert gradtide.evaluate(net, data).loss == pytest.approx(min(history.validation_loss), abs=1e-12)
    from safetensors.torch import load_file

    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in load_file(best).items())
    with (tmp_path / "log.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["validation_loss"]) for line in lines] == history.validation_loss


def test_a_history_is_a_table_and_a_picture(tmp_path):
    history = gradtide.fit(plain().double(), (X, LABELS), validation=(X, LABELS), epochs=2, lr=0.1, metrics=[right])
    lines = str(history).splitlines()
    assert lines[0].split() == ["epoch", "loss", "accuracy", "validation_loss", "validation_accuracy", "right", "lr"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2"]
    history.plot(str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_leaves_what_was_learnt_and_tells_callbacks():
    net, told = plain().double(), []
    before = [parameter.clone() for parameter in net.parameters()]

    def interrupt(event):
        told.append(event)
        if isinstance(event, BatchDone) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        gradtide.fit(net, (X, LABELS), devices=2, batch_size=9, lr=0.1, epochs=5, callbacks=[interrupt])
    assert not any(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))
    assert isinstance(told[-1], gradtide.FitEnd)
    assert told[-1].failed


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, LABELS, strict=True))


@pytest.mark.parametrize(
    "data", [(X.numpy(), LABELS.numpy()), Stream(), DataLoader(Stream(), 9), [(X[:9], LABELS[:9]), (X[9:], LABELS[9:])]]
)
def test_whatever_gives_batches_is_trained_on_and_predicted_in_its_order(data):
    net = plain().double()
    history = gradtide.fit(net, data, validation=data, batch_size=9, devices=2, lr=0.1)
    assert len(history.validation_loss) == 1
    net.eval()
    assert torch.allclose(gradtide.predict(net, data, devices=3, batch_size=5), net(X), rtol=0, atol=1e-12)
    assert torch.allclose(gradtide.predict(net, X, devices=2, batch_size=5), net(X), rtol=0, atol=1e-12)


def test_inputs_alone_are_predicted_and_bf16_is_that_of_validation():
    net = plain()
    loader = DataLoader(steered_fit.TensorDataset(X.float()), 5)
    assert torch.allclose(gradtide.predict(net, loader, devices=2), net(X.float()), rtol=0, atol=1e-6)
    data = X.float(), LABELS
    history = gradtide.fit(net, data, validation=data, lr=0.1, precision="bf16", metrics=[right])
    seen = gradtide.evaluate(net, data, precision="bf16", metrics=[right])
    assert [seen.loss, seen.metrics["right"]] == [history.validation_loss[-1], history.metrics["right"][-1]]
    assert gradtide.predict(net, X.float(), devices=2, precision="bf16").dtype == torch.bfloat16
    drawn = DataLoader(steered_fit.TensorDataset(*data), batch_sampler=BatchSampler(RandomSampler(X), 5, False))
    with pytest.raises(ConfigError, match="shuffles"):
        gradtide.predict(net, drawn)


def test_metrics_of_torchmetrics_and_what_tensorboard_reads(tmp_path):
    """F1 of all samples, not a mean of batches; and every figure of every epoch, with the packages themselves."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torchmetrics.classification import MulticlassF1Score

    net, data = plain().double(), DataLoader(steered_fit.TensorDataset(X, LABELS), 4)
    log, metric = gradtide.TensorBoardLog(tmp_path / "tb"), MulticlassF1Score(3, average="macro")
    options = {"validation": data, "epochs": 2, "lr": 0.1, "callbacks": [log]}
    history = gradtide.fit(net, data, devices=2, metrics={"f1": metric}, **options)
    whole = MulticlassF1Score(3, average="macro")(net(X), LABELS)
    assert history.metrics["f1"][-1] == pytest.approx(float(whole), abs=1e-6)
    read = EventAccumulator(str(tmp_path / "tb")).Reload()
    for name, values in history.columns().items():
        assert [(one.step, one.value) for one in read.Scalars(name)] == [
            (epoch + 1, pytest.approx(value, rel=1e-6)) for epoch, value in enumerate(values)
        ]


def test_one_sample_has_no_variance_on_many_devices_as_on_one():
    data = X[:19], LABELS[:19]  # 9 + 9 + 1
    with pytest.raises(DataError, match="more than one value a channel"):
        gradtide.fit(steered_fit.normed().double(), data, devices=2, batch_size=9, batch_norm="shared")


def test_a_best_model_that_is_not_there_is_missed(tmp_path):
    net, kept = plain().double(), tmp_path / "best.safetensors"
    keeping = gradtide.Checkpoints(str(tmp_path / "ck"), every=1)
    best = {"callbacks": [gradtide.BestModel(kept, "loss", mode="max", restore=True)], "resume": True}
    gradtide.fit(net, (X, LABELS), lr=0.1, epochs=2, checkpoints=keeping, **best)
    kept.unlink()
    best["callbacks"] = [gradtide.BestModel(kept, "loss", mode="max", restore=True)]
    with pytest.raises(ConfigError, match="epoch 1 was best, before this run was resumed"):
        gradtide.fit(net, (X, LABELS), lr=0.1, epochs=3, checkpoints=keeping, **best)


def raises(event):
    raise ZeroDivisionError("of its own")


def many(outputs, targets):
    return outputs


def spread(outputs, targets):
    return outputs.std()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": [many]}, r"the metric 'many' gave a tensor of shape \(37, 3\)"),
        ({"metrics": {"words": lambda outputs, targets: "good"}}, "the metric 'words' gave a str"),
        ({"metrics": [spread]}, "no mean over samples.*OverAll"),
        ({"metrics": [right], "validation": None}, "give validation="),
        ({"metrics": right}, "metrics is a function"),
        ({"schedule": lambda optimizer: 3}, r"schedule gave a int, which has no step\(\)"),
        ({"schedule": lr_scheduler.StepLR}, "lambda optimizer"),
        ({"schedule": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=1), "epochs": 3}, "torch says"),
        ({"schedule": steered_fit.cosine, "warmup_epochs": 1}, "both set the learning rate"),
        ({"callbacks": [raises]}, r"callback raises raised ZeroDivisionError: of its own \(.*test_steering.py, line"),
        ({"callbacks": [gradtide.EarlyStopping("f1")]}, "no 'f1' to watch, but"),
        ({"clip_norm": -1}, "clip_norm is -1"),
        ({"precision": "fp8"}, "say 'bf16'"),
        ({"batch_norm": "shared", "accumulate": 2, "balance": True}, "leave one of them out"),
        ({"batch_norm": "both"}, "say 'own'"),
        ({"resume": True}, "it keeps none"),
    ],
)
def test_a_mistake_is_said_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        gradtide.fit(plain().double(), (X, LABELS), lr=0.1, **{"validation": (X, LABELS), **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, LABELS[:5]), "37 inputs and 5 targets"),
        ((X, LABELS, -torch.ones(37)), "negative"),
        ((X, ["a"] * 37), "has a str"),
        ({"pixels": X, "label": LABELS}, "names 'inputs' and 'targets'"),
        (({"a": X, "b": X[:4]}, LABELS), "a row a sample"),
        (DataLoader(steered_fit.TensorDataset(X), 9), "not 1 things"),
    ],
)
def test_data_that_makes_no_batches_is_said_in_one_line(data, message):
    with pytest.raises(DataError, match=message):
        gradtide.fit(plain().double(), data, lr=0.1)


@pytest.mark.parametrize("case", ["batch norm", "batch norm, accumulate", "numpy, per step"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1)])
def test_a_run_goes_on_with_more_devices_and_with_fewer(tmp_path, case, before, after):
    keeping = {"checkpoints": gradtide.Checkpoints(str(tmp_path), every=1), "resume": True}
    steered_fit.train(case, devices=before, epochs=2, **keeping)
    assert_alike_after_resuming(steered_fit.train(case, devices=after, **keeping), alone(case))


def assert_alike_after_resuming(found, one):
    """Callbacks were told of the epochs of the first run in the first run."""
    assert_alike(found | {"told": one["told"][: -len(found["told"])] + found["told"]}, one)


def test_what_needs_all_workers_to_know_the_same_is_refused_where_they_may_not():
    with pytest.raises(ConfigError, match=r"BestModel\(restore=True\): over servers one worker evaluates"):
        Callbacks([gradtide.BestModel("best.safetensors", restore=True)]).check_over_servers()
    Callbacks([gradtide.BestModel("best.safetensors")]).check_over_servers()
    optimizer = Optimizers("SGD", plain(), 0.1)
    schedule, made = RateSchedule(steered_fit.plateau, "epoch", Rates()), optimizer.make(plain())
    with pytest.raises(ConfigError, match="nor where workers come and go"):
        schedule.follow(Position(), [made], optimizer, agreed=False)


def test_tensorboard_that_is_missing_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'gradtide\[tensorboard\]'"):
        gradtide.TensorBoardLog("runs")


def test_who_one_is_works_without_a_launcher():
    assert (gradtide.rank(), gradtide.workers(), gradtide.is_main()) == (0, 1, True)
    assert gradtide.mean_over_workers(3) == 3.0
    assert gradtide.mean_over_workers({"loss": 0.5}) == {"loss": 0.5}
    assert torch.equal(gradtide.mean_over_workers(X), X)
    with gradtide.Group.from_environment() as group:
        assert (group.rank, group.size) == (0, 1)


@pytest.mark.slow
def test_over_servers_parameters_and_rates_are_those_of_one_process(tmp_path, forks):
    """Clipping makes workers step; without it the servers do, and are told of every change of rate and momentum."""
    cases = ["schedule, clip, metrics", "numpy, per step", "sample weights"]
    with ExitStack() as stack:
        stores = [stack.enter_context(gradtide.local_servers(1, forks=forks)).address for _ in cases]
        workers = on_workers(tmp_path, ",".join(stores), cases)
    for rank, worker in enumerate(workers):
        for case, found in worker.items():
            one = alone(case)
            for name, tensor in one["state"].items():
                assert torch.allclose(found["state"][name], tensor, rtol=0, atol=1e-10), name
            own = ["lr"] if rank else [name for name in one["columns"] if name not in ("loss", "accuracy")]
            for name in own:  # each worker knows its own losses, and one of them evaluates
                assert found["columns"][name] == pytest.approx(one["columns"][name], abs=1e-10), name


@pytest.mark.quick
@pytest.mark.parametrize("callback", [gradtide.EarlyStopping, lambda watch: gradtide.BestModel("best", watch)])
def test_what_others_call_otherwise_is_told_before_an_epoch_has_passed(callback):
    with pytest.raises(ConfigError, match="'val_loss' is called 'validation_loss' here"):
        callback("val_loss")
