import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.events import BatchDone, EpochDone, GradientsSynchronised
from gradtide.train.digits import load_digits
from gradtide.train.models import build_model
from gradtide.train.source import read_ahead

(X, Y), TEST = load_digits()


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_fit_learns_the_digits():
    model = small_model()
    history = gradtide.fit(model, (X, Y), test_data=TEST, devices=2, batch_size=32, epochs=8, lr=0.1)
    assert history.loss[-1] < 0.4 < 0.8 < history.loss[0]
    assert history.test_accuracy[-1] > 0.9
    assert len(history.loss) == len(history.accuracy) == len(history.test_loss) == 8
    seen = gradtide.evaluate(model, TEST, devices=3, batch_size=50)
    assert seen.accuracy == history.test_accuracy[-1]
    assert seen.loss == pytest.approx(history.test_loss[-1])


@pytest.mark.quick
def test_two_runs_with_one_seed_give_the_same_bits_and_another_seed_others():
    runs = []
    for seed in (3, 3, 4):
        model = build_model("lenet", 0)
        gradtide.fit(model, (X[:300], Y[:300]), devices=2, batch_size=50, epochs=1, lr=0.1, seed=seed)
        runs.append(weights(model))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_dropout_in_fit_repeats_bit_for_bit_on_several_devices():
    runs = []
    for _ in range(3):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Dropout(), nn.Linear(64, 10))
        gradtide.fit(model, (X[:400], Y[:400]), devices=3, batch_size=50, epochs=1, lr=0.1)
        runs.append(weights(model))
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader"])
def test_tensors_a_dataset_and_a_loader_train_alike(kind):
    sets = {
        "tensors": (X[:200], Y[:200]),
        "dataset": TensorDataset(X[:200], Y[:200]),
        "loader": DataLoader(TensorDataset(X[:200], Y[:200]), batch_size=50, shuffle=True),
    }
    seen = []
    model = small_model()
    history = gradtide.fit(model, sets[kind], devices=2, batch_size=50, epochs=3, lr=0.3, emit=seen.append)
    batches = [event for event in seen if isinstance(event, BatchDone)]
    assert [event.samples for event in batches] == [50] * 12
    assert history.loss[-1] < history.loss[0]
    assert sum(isinstance(event, EpochDone) for event in seen) == 3
    assert all(e.wire_bytes == 2 * 4 * len(weights(model)) for e in seen if isinstance(e, GradientsSynchronised))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X[:130], Y[:130], strict=True))


def test_a_stream_of_unknown_length_trains():
    seen = []
    gradtide.fit(small_model(), Stream(), devices=2, batch_size=50, epochs=2, emit=seen.append)
    assert [event.samples for event in seen if isinstance(event, BatchDone)] == [50, 50, 30, 50, 50, 30]


def test_a_regression_has_a_loss_and_no_accuracy():
    model = nn.Linear(3, 1)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    data = (x, x @ torch.tensor([[1.0], [2.0], [3.0]]))
    options = {"devices": 2, "batch_size": 16, "epochs": 20, "loss": "mse", "optimizer": "adam", "lr": 0.1}
    history = gradtide.fit(model, data, test_data=data, **options)
    assert history.loss[-1] < history.loss[0] / 2
    assert history.accuracy[-1] is None
    assert history.test_accuracy[-1] is None


def test_batch_norm_keeps_the_first_devices_statistics_and_evaluates_with_them():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))
    history = gradtide.fit(model, (X, Y), test_data=TEST, devices=2, batch_size=128, epochs=2, lr=0.1)
    assert gradtide.evaluate(model, TEST).loss == pytest.approx(history.test_loss[-1], rel=1e-5)


def test_shared_batch_norm_in_fit_gives_what_one_device_gives():
    models = []
    for devices in (1, 3):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)).double()
        options = {"batch_size": 100, "epochs": 2, "lr": 0.1, "sync_batch_norm": True}
        gradtide.fit(model, (X.double(), Y), devices=devices, **options)
        models.append(model)
    for one, three in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.allclose(one.double(), three.double(), atol=1e-10, rtol=0)


def test_scaling_the_batch_scales_the_rate_and_warms_up():
    seen = []
    gradtide.fit(
        small_model(),
        (X[:320], Y[:320]),
        devices=4,
        batch_size=10,
        epochs=2,
        lr=0.01,
        scale_batch=True,
        lr_scaling="linear",
        warmup_epochs=1,
        emit=seen.append,
    )
    batches = [event for event in seen if isinstance(event, BatchDone)]
    assert [event.samples for event in batches] == [40] * 16
    assert batches[0].lr == pytest.approx(0.0004)
    assert [event.lr for event in batches[:8]] == sorted(event.lr for event in batches[:8])
    assert batches[8].lr == batches[-1].lr == pytest.approx(0.04)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ConfigError, "batch size 0"),
        ({"batch_size": 2, "devices": 3}, ConfigError, "3 devices but only 2 samples in a batch"),
        ({"epochs": 0}, ConfigError, "0 epochs"),
        ({"lr": 0.0}, ConfigError, "learning rate 0.0"),
        ({"lr": float("nan")}, ConfigError, "learning rate nan"),
        ({"strategy": "rnig"}, ConfigError, "no strategy is called 'rnig'"),
        ({"optimizer": "sdg"}, ConfigError, "unknown optimizer 'sdg'"),
        ({"lr_scaling": "linear"}, ConfigError, "give both or neither"),
        ({"lr_scaling": "cubic", "scale_batch": True}, ConfigError, "unknown learning-rate scaling"),
        ({"warmup_epochs": -1.0}, ConfigError, "warm-up of -1.0"),
        ({"lr": 1e30, "batch_size": 50}, DataError, "the loss is"),
    ],
)
def test_mistakes_are_answered_in_one_clear_line(options, error, message):
    with pytest.raises(error, match=message) as caught:
        gradtide.fit(small_model(), (X[:100], Y[:100]), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X[:5], Y[:4]), "5 inputs and 4 targets"),
        ((X[:0], Y[:0]), "0 inputs"),
        ("digits", r"can't read batches from str; pass \(inputs, targets\) as tensors"),
        (DataLoader(TensorDataset(X[:8]), batch_size=4), "pair of tensors"),
        (DataLoader(TensorDataset(X[:8], Y[:8]), batch_size=16, drop_last=True), "no batch"),
    ],
)
def test_data_that_cannot_be_trained_on_is_named(data, message):
    with pytest.raises(DataError, match=message):
        gradtide.fit(small_model(), data)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="no parameter to train"):
        gradtide.fit(nn.Flatten(), (X[:8], Y[:8]), batch_size=4)


def test_the_model_keeps_what_it_learnt_when_the_run_is_interrupted():
    model = small_model()
    before = weights(model)

    def interrupt(event):
        if isinstance(event, BatchDone) and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradtide.fit(model, (X, Y), devices=2, batch_size=50, emit=interrupt)
    assert not torch.equal(weights(model), before)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gradtide")]


def test_the_next_batch_is_read_while_this_one_computes():
    second_is_read = threading.Event()

    def items():
        yield 1
        second_is_read.set()
        yield 2

    for item in read_ahead(items()):
        assert second_is_read.wait(timeout=30), f"nobody read on while item {item} was in use"


def test_an_error_of_the_reader_is_raised_where_the_batch_is_asked_for():
    def items():
        yield 1
        raise ValueError("bad sample")

    reader = read_ahead(items())
    assert next(reader) == 1
    with pytest.raises(ValueError, match="bad sample"):
        next(reader)


def test_a_codec_that_is_none_is_told():
    data = torch.zeros(4, 2), torch.zeros(4, 1)
    with pytest.raises(ConfigError, match="no codec is called that"):
        gradtide.fit(nn.Linear(2, 1), data, compress="zip")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("weighted", ["training", "validation"])
def test_either_of_training_and_validation_data_may_have_sample_weights(devices, weighted):
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(33, 4, generator=random).double(), torch.randint(3, (33,), generator=random)
    with_weights, net = (x, y, torch.rand(33, generator=random)), torch.nn.Linear(4, 3).double()
    data, validation = (with_weights, (x, y)) if weighted == "training" else ((x, y), with_weights)
    history = gradtide.fit(net, data, validation=validation, devices=devices, lr=0.1)
    seen = gradtide.evaluate(net, validation)
    assert history.validation_loss == [pytest.approx(seen.loss, abs=1e-12)]
    assert history.validation_accuracy == [seen.accuracy]


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam"])
def test_sparse_embeddings_are_those_of_plain_pytorch_on_one_device_and_refused_on_several(optimizer):
    random = torch.Generator().manual_seed(0)
    x, y = torch.randint(10, (32, 3), generator=random), torch.randint(3, (32,), generator=random)
    net = torch.nn.EmbeddingBag(10, 3, sparse=True)
    other = torch.nn.EmbeddingBag(10, 3, sparse=True)
    other.load_state_dict(net.state_dict())
    batches = [(x[:16], y[:16]), (x[16:], y[16:])]
    gradtide.fit(net, batches, lr=0.1, optimizer=optimizer)
    plain = getattr(torch.optim, optimizer)(other.parameters(), lr=0.1)
    for inputs, targets in batches:
        torch.nn.functional.cross_entropy(other(inputs), targets).backward()
        plain.step()
        plain.zero_grad()
    assert torch.allclose(net.weight, other.weight, rtol=0, atol=1e-7)
    with pytest.raises(ConfigError, match="EmbeddingBag gives sparse gradients, which devices of one process don't"):
        gradtide.fit(net, batches, lr=0.1, devices=2, optimizer=optimizer)
