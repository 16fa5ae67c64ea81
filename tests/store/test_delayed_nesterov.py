"""Delayed Nesterov: changes that are pushed one at a time, and momentum that takes up several."""

from itertools import permutations

import pytest
import torch
from cluster import Cluster
from torch import Tensor

from gradtide.store.rules.arithmetic import Contribution
from gradtide.store.rules.updates import TorchArithmetic, make_optimizer, update
from gradtide.store.wire import placement
from gradtide.store.wire.messages import KeySpec

SHAPE = (9, 5)


def change(number: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(number), dtype=torch.float64)


def nesterov(means: list[Tensor]) -> Tensor:
    parameter = torch.nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
    rule = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for mean in means:
        parameter.grad = mean
        rule.step()
    return parameter.detach()


def delayed(changes: list[Tensor], every: int) -> Tensor:
    parameter = torch.nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
    rule = make_optimizer(update("delayed_nesterov", lr=0.7, momentum=0.9, every=every), [parameter])
    for one in changes:
        parameter.grad = one
        rule.step()
    return parameter.detach()


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_pushes_in_any_order_are_one_step_of_nesterovs_with_their_mean(every: int) -> None:
    rounds = [[change(10 * number + push) for push in range(every)] for number in range(3)]
    wanted = nesterov([torch.stack(pushes).mean(0) for pushes in rounds])
    for order in permutations(range(every)):
        found = delayed([pushes[push] for pushes in rounds for push in order], every)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_in_between_each_push_takes_its_plain_part_of_a_step() -> None:
    found = delayed([change(1)], 4)
    assert torch.allclose(found, 1 - 0.7 * change(1) / 4, rtol=0, atol=1e-15)


@pytest.mark.parametrize("blocks", [None, 64])
def test_blocks_of_an_asynchronous_key_do_what_the_whole_does(
    monkeypatch: pytest.MonkeyPatch, blocks: int | None
) -> None:
    if blocks is not None:
        monkeypatch.setattr(placement, "BLOCK_BYTES", blocks)
    spec = KeySpec("w", SHAPE, "float64", update("delayed_nesterov", lr=0.7, momentum=0.9, every=3))
    cluster = Cluster(2, 3)
    cluster.init(spec, torch.ones(SHAPE, dtype=torch.float64))
    for number in range(7):
        cluster.push(f"w{number % 3}", spec, change(number))
        cluster.settle()
    found = cluster.pull("w0", spec).reshape(SHAPE)
    assert torch.equal(found, delayed([change(number) for number in range(7)], 3))


def test_a_block_that_is_restored_in_the_middle_goes_on_with_the_same_bits() -> None:
    """As replicas and checkpoints do."""
    arithmetic = TorchArithmetic()
    spec = KeySpec("w", SHAPE, "float64", update("delayed_nesterov", lr=0.7, momentum=0.9, every=3))
    state = arithmetic.create(spec, torch.ones(SHAPE, dtype=torch.float64))
    for number in range(8):
        state.apply(state.combine([Contribution(None, change(number))]))
        state = arithmetic.restore(spec, state.value().clone(), state.arguments(), state.beside())
    assert torch.equal(state.value(), delayed([change(number) for number in range(8)], 3))


def test_options_change_while_pushes_wait() -> None:
    arithmetic = TorchArithmetic()
    spec = KeySpec("w", SHAPE, "float64", update("delayed_nesterov", lr=1.0, momentum=0.5, every=4))
    state = arithmetic.create(spec, torch.zeros(SHAPE, dtype=torch.float64))
    ones = torch.ones(SHAPE, dtype=torch.float64)
    for _ in range(2):
        state.apply(state.combine([Contribution(None, ones)]))
    state.configure({"every": 2})  # so the next takes all three up
    state.apply(state.combine([Contribution(None, ones)]))
    assert torch.equal(state.value(), -(2 / 4 + 1 / 2 + 0.5 * 3 / 2) * ones)
    assert {name: value.dtype for name, value in state.beside().items()} == {
        "step": torch.int64,
        "momentum_buffer": torch.float64,
        "waiting": torch.float64,
    }


def test_the_largest_of_a_round_may_be_less_than_it_was() -> None:
    spec = KeySpec("n", (2,), "int64", update("largest"), delay=0)
    state = TorchArithmetic().create(spec, torch.tensor([9, 9]))
    state.apply(state.combine([Contribution(None, torch.tensor([3, 1])), Contribution(None, torch.tensor([2, 8]))]))
    assert state.value().tolist() == [3, 8]
