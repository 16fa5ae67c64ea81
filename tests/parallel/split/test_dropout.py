"""Seeded dropout: the statistics of dropout, and the same bits whoever computes them."""

import itertools
import math

import pytest
import torch

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.dropout import (
    DropoutPlace,
    MaskSpan,
    SeededDropout,
    _keep_by_torch,
    keep_mask,
    mask_key,
)

CPU = torch.device("cpu")


def masks(rows: int, units: int, p: float, *key) -> torch.Tensor:
    return keep_mask(CPU, rows, MaskSpan(1, units, 1, units, 0), mask_key(*key), 0, p).view(rows, units)


def dropout(p: float, shape: tuple[int, ...], first: int = 0, step: int = 3, channelwise: bool = False) -> torch.Tensor:
    place = DropoutPlace(seed=5)
    place.at(step=step, first=first, samples=shape[0])
    return SeededDropout("drop", p, place, channelwise)(torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_of_p_is_dropped_and_the_rest_scaled_up(p):
    found = dropout(p, (400, 1000))
    kept = found != 0
    spread = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(kept.double().mean() - (1 - p)) < 5 * spread
    assert torch.equal(found[kept], torch.full_like(found[kept], 1 / (1 - p)))
    for dim, length in ((0, 400), (1, 1000)):  # no row and no column is special
        worst = (kept.double().mean(dim) - (1 - p)).abs().max()
        assert worst < 5.5 * math.sqrt(p * (1 - p) / length)


def test_neighbours_layers_steps_and_seeds_are_independent():
    one = masks(300, 1000, 0.5, 1, 1, "a").double() - 0.5
    others = {
        "the next unit": one.roll(1, 1),
        "the next sample": one.roll(1, 0),
        "64 units on": one.roll(64, 1),
        "another layer": masks(300, 1000, 0.5, 1, 1, "b").double() - 0.5,
        "the next step": masks(300, 1000, 0.5, 1, 2, "a").double() - 0.5,
        "the next seed": masks(300, 1000, 0.5, 2, 1, "a").double() - 0.5,
        "the next call": masks(300, 1000, 0.5, 1, 1, "a", 1).double() - 0.5,
    }
    for a, b in itertools.combinations([one, *others.values()], 2):
        assert abs((a * b).mean() / 0.25) < 5 / math.sqrt(one.numel())
    words = one[:, :800].reshape(-1, 8).gt(0).long() @ (2 ** torch.arange(8))
    counts = torch.bincount(words, minlength=256).double()
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * math.sqrt(2 * 255)  # chi square of bytes


def test_parts_of_a_batch_get_the_rows_of_its_mask():
    whole = dropout(0.3, (33, 7, 5))
    parts = [dropout(0.3, (last - first, 7, 5), first) for first, last in ((0, 11), (11, 12), (12, 12), (12, 33))]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(("dim", "sizes"), [(1, (3, 4)), (-1, (1, 2, 2)), (2, (2, 2, 2))])
def test_shards_get_their_own_slices_of_the_mask(dim, sizes):
    whole = dropout(0.4, (9, 7, 6, 5))
    parts = []
    for shard, size in enumerate(sizes):
        place = DropoutPlace(seed=5)
        place.at(step=3, first=0, samples=9)
        module = SeededDropout("drop", 0.4, place)
        module.dim, module.total, module.offset = dim, sum(sizes), sum(sizes[:shard])
        shape = [9, 7, 6, 5]
        shape[dim] = size
        parts.append(module(torch.ones(shape, dtype=torch.float64)))
    assert torch.equal(torch.cat(parts, dim), whole)


def test_whole_channels_are_dropped_where_asked_for():
    found = dropout(0.5, (20, 50, 3, 4), channelwise=True)
    sums = found.sum((2, 3))
    assert set(sums.unique().tolist()) == {0.0, 24.0}
    with pytest.raises(ConfigError, match="channels"):
        dropout(0.5, (20, 50), channelwise=True)


def test_a_second_call_in_a_step_differs_and_computing_again_does_not():
    place = DropoutPlace()
    module = SeededDropout("drop", 0.5, place)
    x = torch.ones(4, 100)
    place.at(step=0, first=0, samples=4)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    place.at(step=0, first=0, samples=4)
    assert torch.equal(module(x), first)
    assert torch.equal(module(x), second)
    assert torch.equal(module.eval()(x), x)


def test_nothing_and_everything_can_be_dropped_and_gradients_are_masked():
    assert torch.equal(dropout(0.0, (3, 4)), torch.ones(3, 4, dtype=torch.float64))
    assert torch.equal(dropout(1.0, (3, 4)), torch.zeros(3, 4, dtype=torch.float64))
    place = DropoutPlace()
    place.at(step=0, first=0, samples=5)
    x = torch.ones(5, 40, requires_grad=True)
    out = SeededDropout("drop", 0.25, place)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_a_value_whose_rows_are_not_samples_is_refused():
    place = DropoutPlace()
    place.at(step=0, first=0, samples=5)
    with pytest.raises(ConfigError, match=r"reads \(7, 5\) for 5 samples"):
        SeededDropout("drop", 0.25, place)(torch.ones(7, 5))


def test_other_devices_take_the_same_bits():
    span, key = MaskSpan(3, 4, 5, 9, 2), mask_key(1, 2, "c")
    assert torch.equal(
        keep_mask(CPU, 6, span, key, 40, 0.3), _keep_by_torch(CPU, 6, span, key, 40, math.ceil(0.3 * 2**53))
    )


def test_the_bits_are_what_they_always_were():
    """A checkpoint's run goes on with the same masks in the next version."""
    assert mask_key(1, 2, "c") == 0xF4827AF132D14D1B
    assert ["".join(str(int(bit)) for bit in row) for row in masks(2, 16, 0.5, 1, 2, "c")] == [
        "0111111000001110",
        "0010001001101111",
    ]
