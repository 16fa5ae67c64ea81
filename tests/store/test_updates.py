"""Updates on servers equal torch.optim in one process, and mistakes get one clear line."""

from random import Random
from typing import Any

import msgspec
import pytest
import torch
from cluster import Cluster
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.store.rules.arithmetic import Contribution
from gradtide.store.rules.fused import fused_holds
from gradtide.store.rules.reductions import SEMIRINGS, Semiring, broken_laws, load_semiring
from gradtide.store.rules.updates import ELEMENTWISE, TorchArithmetic, update
from gradtide.store.wire import placement
from gradtide.store.wire.messages import KeySpec, UpdateRule

OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "adam": {"lr": 0.01, "betas": (0.8, 0.99)},
    "adamw": {"lr": 0.01, "weight_decay": 0.1},
    "adagrad": {"lr": 0.1},
    "rmsprop": {"lr": 0.01, "momentum": 0.5},
}
SHAPE = (37, 11)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "BLOCK_BYTES", 512)


def gradient(step: int, worker: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * step + worker), dtype=dtype)


def train(name: str, dtype: torch.dtype, servers: int, workers: int, shuffle: int, steps: int = 50) -> Tensor:
    rule = update("sgd" if name == "momentum" else name, **OPTIMIZERS[name])
    spec = KeySpec("w", SHAPE, str(dtype).removeprefix("torch."), rule, delay=0)
    cluster = Cluster(servers, workers, Random(shuffle))
    cluster.init(spec, torch.ones(SHAPE, dtype=dtype))
    for step in range(1, steps + 1):
        for worker in range(workers):
            cluster.push(f"w{worker}", spec, gradient(step, worker, dtype), weight=worker + 1.0)
        cluster.settle()
    return cluster.pull("w0", spec).reshape(SHAPE)


def reference(name: str, dtype: torch.dtype, workers: int) -> Tensor:
    kinds = {
        "sgd": "SGD",
        "momentum": "SGD",
        "adam": "Adam",
        "adamw": "AdamW",
        "adagrad": "Adagrad",
        "rmsprop": "RMSprop",
    }
    parameter = torch.nn.Parameter(torch.ones(SHAPE, dtype=dtype))
    optimizer = getattr(torch.optim, kinds[name])([parameter], **OPTIMIZERS[name])
    weights = range(1, workers + 1)
    for step in range(1, 51):
        total = sum(w * gradient(step, worker, dtype) for worker, w in enumerate(weights))
        parameter.grad = total / sum(weights)
        optimizer.step()
    return parameter.detach()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 3), (3, 4)])
def test_fifty_rounds_on_split_blocks_equal_torch_in_one_process(name: str, servers: int, workers: int) -> None:
    double = train(name, torch.float64, servers, workers, shuffle=1)
    assert torch.allclose(double, reference(name, torch.float64, workers), rtol=0, atol=1e-10)
    single = train(name, torch.float32, servers, workers, shuffle=2)
    assert torch.allclose(single, reference(name, torch.float32, workers), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("small_blocks")
def test_the_bits_do_not_depend_on_the_order_of_arrival() -> None:
    runs = [train("adam", torch.float32, 3, 4, shuffle, steps=10) for shuffle in range(4)]
    assert all(torch.equal(run, runs[0]) for run in runs)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_optimizer_gives_the_same_for_blocks_as_for_the_whole(name: str) -> None:
    spec = KeySpec("w", SHAPE, "float64", update(name), delay=0)
    cluster = Cluster(2, 1)
    cluster.init(spec, torch.ones(SHAPE, dtype=torch.float64))
    parameter = torch.nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
    optimizer = getattr(torch.optim, name)([parameter])
    for step in range(1, 6):
        parameter.grad = gradient(step, 0, torch.float64)
        cluster.push("w0", spec, parameter.grad)
        optimizer.step()
    assert torch.allclose(cluster.pull("w0", spec).reshape(SHAPE), parameter.detach(), rtol=0, atol=1e-10)


LARGE = 1 << 17  # from here on the fused kernels are used
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 0.0, torch.float16: 0.0}
SETTINGS = {
    **{name: [(name, {})] for name in ELEMENTWISE},
    "SGD": [("SGD", {}), ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True})],
    "AdamW": [("AdamW", {"amsgrad": True})],
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("name", "options"), [one for settings in SETTINGS.values() for one in settings])
def test_a_large_block_is_stepped_as_the_plain_kernel_steps_it(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    start = torch.linspace(-1, 1, LARGE, dtype=torch.float64).to(dtype)
    spec = KeySpec("w", (LARGE,), str(dtype).removeprefix("torch."), update(name, lr=0.05, **options))
    state = TorchArithmetic().create(spec, start)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([parameter], lr=0.05, **options, foreach=False)
    for step in range(3):
        parameter.grad = torch.cos(start * (step + 1))
        state.apply(state.combine([Contribution(None, parameter.grad)]))
        optimizer.step()
    torch.testing.assert_close(state.value(), parameter.detach(), rtol=0, atol=ROUNDING[dtype])
    assert not torch.equal(state.value(), start)


@pytest.mark.parametrize(("begin", "then"), [({"momentum": 0.9}, {"momentum": 0.0}), ({}, {"momentum": 0.9})])
def test_a_large_block_goes_on_with_its_state_when_its_options_change(begin: Any, then: Any) -> None:
    fused_holds.cache_clear()
    start = torch.linspace(-1, 1, LARGE, dtype=torch.float64)
    state = TorchArithmetic().create(KeySpec("w", (LARGE,), "float64", update("SGD", lr=0.05, **begin)), start)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.05, **begin)
    for step in range(4):
        parameter.grad = torch.cos(start * step)
        state.apply(state.combine([Contribution(None, parameter.grad)]))
        optimizer.step()
        if step == 1:
            state.configure(then)
            optimizer.param_groups[0].update(then)
    torch.testing.assert_close(state.value(), parameter.detach(), rtol=0, atol=1e-13)


def test_fused_kernels_are_taken_where_they_hold_and_only_there() -> None:
    """In half precision they never are: what a fused kernel rounds once a plain one rounds often."""
    for name in ("SGD", "Adam", "AdamW", "Adagrad"):
        assert fused_holds(name, torch.float32, (("lr", True),))
        assert fused_holds(name, torch.float64, (("lr", True), ("maximize", True), ("weight_decay", True)))
        assert not fused_holds(name, torch.bfloat16, (("lr", True),))
        assert not fused_holds(name, torch.float16, (("lr", True),))
    assert not fused_holds("RMSprop", torch.float32, ())


@pytest.mark.usefixtures("small_blocks")
def test_a_rate_changes_from_its_round_on() -> None:
    spec = KeySpec("w", SHAPE, "float64", update("sgd", lr=1.0), delay=0)
    cluster = Cluster(2, 2)
    cluster.init(spec, torch.zeros(SHAPE, dtype=torch.float64))
    assert cluster.configure("w0", "w", {"lr": 0.5}, from_round=3).refused is None
    for _ in range(4):
        for worker in ("w0", "w1"):
            cluster.push(worker, spec, torch.ones(SHAPE, dtype=torch.float64))
        cluster.settle()
    assert torch.equal(cluster.pull("w1", spec), torch.full((407,), -3.0, dtype=torch.float64))
    late = cluster.configure("w0", "w", {"lr": 0.1}, from_round=2)
    assert late.refused is not None
    assert "round 4 is closed" in late.refused.text
    wrong = cluster.configure("w0", "w", {"lrr": 0.1})
    assert wrong.refused is not None
    assert "did you mean 'lr'?" in wrong.refused.text


@pytest.mark.usefixtures("small_blocks")
def test_rows_of_a_key_are_pulled_alone() -> None:
    spec = KeySpec("w", SHAPE, "float32", update("assign"))
    cluster = Cluster(2, 1)
    value = torch.arange(407.0).reshape(SHAPE)
    cluster.init(spec, value)
    for rows in (slice(0, 5), slice(9, 30), slice(36, 37), slice(-3, None)):
        assert torch.equal(cluster.pull("w0", spec, rows).reshape(-1, 11), value[rows])


def test_the_sum_is_taken_on_request() -> None:
    spec = KeySpec("w", (2,), "float64", update("sgd", lr=1.0, reduce="sum"), delay=0)
    cluster = Cluster(1, 2)
    cluster.init(spec, torch.zeros(2, dtype=torch.float64))
    for worker in ("w0", "w1"):
        cluster.push(worker, spec, torch.tensor([1.0, 2.0], dtype=torch.float64), weight=2.0)
    cluster.settle()
    assert cluster.pull("w0", spec).tolist() == [-4.0, -8.0]


def combined(
    rule: UpdateRule, start: list[float], *pushes: list[float], weights: list[float | None] | None = None
) -> list:
    spec = KeySpec("k", (len(start),), "float64", rule, delay=0)
    state = TorchArithmetic().create(spec, torch.tensor(start, dtype=torch.float64))
    tensors = [torch.tensor(push, dtype=torch.float64) for push in pushes]
    given = weights or [None] * len(tensors)
    state.apply(state.combine([Contribution(w, t) for w, t in zip(given, tensors, strict=True)]))
    return state.value().tolist()


def test_reductions_do_what_they_say() -> None:
    assert combined(update("assign"), [1, 1], [2, 3], [4, 5]) == [4, 5]
    assert combined(update("add"), [1, 1], [2, 3], [4, 5]) == [7, 9]
    assert combined(update("add"), [0, 0], [2, 3], [4, 5], weights=[2.0, None]) == [8, 11]
    assert combined(update("mean"), [9, 9], [2, 3], [4, 5]) == [3, 4]
    assert combined(update("mean"), [9, 9], [2, 3], [4, 5], weights=[3.0, 1.0]) == [2.5, 3.5]
    assert combined(update("mean"), [9, 9], [2, 3], [4, 5], weights=[0.0, 0.0]) == [0, 0]
    assert combined(update("max"), [3, 0], [2, 3], [4, -5]) == [4, 3]
    assert combined(update("max"), [0, 0], [2, 3], [4, -5], weights=[10.0, None]) == [12, 13]
    assert combined(update("min"), [3, 0], [2, 3], [4, -5]) == [2, -5]
    assert combined(update("product"), [2, 1], [2, 3], [4, 5]) == [16, 15]
    assert combined(update("any"), [0, 0], [0, 0], [0, 7]) == [0, 1]
    assert combined(update("all"), [1, 1], [1, 3], [0, 7]) == [0, 1]
    assert combined(update("logsumexp"), [0.0], [0.0], [0.0]) == pytest.approx([torch.tensor(3.0).log().item()])
    assert combined(update("trimmed_mean", trim=0.25), [0], [1], [100], [3], [-50]) == [2]


def test_integers_stay_exact_under_weights() -> None:
    spec = KeySpec("k", (1,), "int64", update("add"))
    state = TorchArithmetic().create(spec, torch.tensor([1 << 60]))
    state.apply(state.combine([Contribution(3.0, torch.tensor([(1 << 40) + 1]))]))
    assert state.value().tolist() == [(1 << 60) + 3 * ((1 << 40) + 1)]


def test_a_rule_travels_as_plain_data() -> None:
    rule = update("adam", lr=0.1, betas=(0.9, 0.99), amsgrad=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=UpdateRule) == rule


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("adamm", {}, "did you mean 'adam'?"),
        ("sgd", {"momentun": 0.9}, "SGD has no argument 'momentun'; did you mean 'momentum'?"),
        ("sgd", {"lr": -1.0}, "SGD refuses its arguments: Invalid learning rate"),
        ("lbfgs", {}, "LBFGS can't run on servers"),
        ("muon", {}, "Muon can't run on servers"),
        ("adafactor", {}, "Adafactor can't run on servers"),
        ("sparseadam", {}, "SparseAdam can't run on servers"),
        ("max", {"lr": 0.1}, "max has no argument 'lr'"),
        ("trimmed_mean", {"trim": 0.6}, "below 0.5"),
        ("sgd", {"fused": False}, "has no argument 'fused'"),
    ],
)
def test_a_wrong_rule_gets_one_clear_line(name: str, arguments: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        update(name, **arguments)
    assert says in str(caught.value)


def test_a_mean_in_async_and_an_optimizer_of_integers_are_refused() -> None:
    arithmetic = TorchArithmetic()
    with pytest.raises(ConfigError, match="'k' is async, and mean needs rounds"):
        arithmetic.create(KeySpec("k", (1,), "float32", update("mean")), torch.zeros(1))
    with pytest.raises(ConfigError, match="needs a float dtype"):
        arithmetic.create(KeySpec("k", (1,), "int32", update("sgd")), torch.zeros(1, dtype=torch.int32))
    with pytest.raises(ConfigError, match="is not known to this server; start it with --semiring"):
        arithmetic.create(KeySpec("k", (1,), "float32", update("a.b:c")), torch.zeros(1))


# --- semirings ---

tropical = Semiring("tropical", -torch.inf, 0.0, torch.maximum, torch.add)
lopsided = Semiring("lopsided", 0.0, 1.0, torch.sub, torch.mul)
undistributed = Semiring("undistributed", 0.0, 0.0, torch.add, torch.add)


@pytest.mark.parametrize("name", SEMIRINGS)
def test_the_laws_hold_for_every_semiring(name: str) -> None:
    assert broken_laws(SEMIRINGS[name]) == []


def test_a_broken_law_is_named() -> None:
    assert broken_laws(lopsided) == ["combine is associative", "combine is commutative"]
    assert broken_laws(undistributed) == ["multiply distributes over combine"]


def test_a_semiring_is_registered_by_import_path() -> None:
    loaded = load_semiring(f"{__name__}:tropical")
    arithmetic = TorchArithmetic({"x:tropical": loaded})
    state = arithmetic.create(KeySpec("k", (1,), "float32", update("x:tropical")), torch.zeros(1))
    state.apply(state.combine([Contribution(2.5, torch.ones(1))]))
    assert state.value().tolist() == [3.5]
    with pytest.raises(ConfigError, match="it is not true that combine is associative; combine is commutative"):
        load_semiring(f"{__name__}:lopsided")
    with pytest.raises(ConfigError, match="no semiring at"):
        load_semiring("no.such:thing")
    with pytest.raises(ConfigError, match="not a gradtide"):
        load_semiring("math:pi")


def test_nan_is_seen() -> None:
    arithmetic = TorchArithmetic()
    assert arithmetic.has_nan(torch.tensor([1.0, float("nan")]))
    assert not arithmetic.has_nan(torch.tensor([1.0, float("inf")]))
    assert not arithmetic.has_nan(torch.tensor([1, 2]))
