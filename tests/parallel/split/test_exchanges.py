"""Exchanges as arithmetic: there and back they are each other's adjoint, and bytes are those that have to be sent."""

import pytest
import torch

from gradtide.parallel.split.cut.exchanges import exchange_bytes, exchanged, exchanged_back
from gradtide.parallel.split.cut.local import ShardExchange

SIZES = (3, 4, 2)
SHARDS = len(SIZES)


def given(kind: str) -> list[torch.Tensor]:
    """What each shard has before: slices, parts of a sum, or the same."""
    torch.manual_seed(1)
    if kind in ("gather", "collect", "halo"):
        return [torch.randn(2, size, 5, dtype=torch.float64) for size in SIZES]
    if kind == "sum":
        return [torch.randn(2, 9, 5, dtype=torch.float64) for _ in SIZES]
    return [torch.randn(2, 9, 5, dtype=torch.float64)] * SHARDS


@pytest.mark.parametrize("kind", ["gather", "halo", "slice"])
def test_back_is_the_adjoint_where_every_shard_has_its_own_part_of_the_gradient(kind):
    one = ShardExchange(kind, "v", "w", dim=1, sizes=SIZES, halo=2)
    held = [tensor.clone().requires_grad_() for tensor in given(kind)]
    made = [exchanged(one, shard, held) for shard in range(SHARDS)]
    gradients = [torch.randn_like(tensor) for tensor in made]
    torch.autograd.backward(made, gradients)
    for shard in range(SHARDS):
        expected = sum(t.grad for t in held) if kind == "slice" else held[shard].grad  # one value, on every shard
        torch.testing.assert_close(exchanged_back(one, shard, gradients), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["sum", "collect", "spread"])
def test_back_counts_a_whole_gradient_once(kind):
    """Of a sum and of collected slices every shard has all of the gradient; of what is spread each has a part."""
    one = ShardExchange(kind, "v", "w", dim=1, sizes=SIZES if kind == "collect" else ())
    held = given(kind)
    made = [exchanged(one, shard, held) for shard in range(SHARDS)]
    assert all(torch.equal(tensor, made[0]) for tensor in made)
    whole = torch.randn_like(made[0])
    if kind == "spread":
        parts = [torch.randn_like(whole) for _ in SIZES]
        for shard in range(SHARDS):
            torch.testing.assert_close(exchanged_back(one, shard, parts), parts[0] + parts[1] + parts[2])
    elif kind == "sum":
        assert torch.equal(exchanged_back(one, 1, [whole] * SHARDS), whole)
    else:
        assert torch.equal(exchanged_back(one, 1, [whole] * SHARDS), whole[:, 3:7])


@pytest.mark.parametrize(
    ("kind", "there", "back"),
    [
        ("gather", 2 * 4, 5),
        ("collect", 2 * 4, 0),
        ("slice", 0, 2 * 4),
        ("halo", 2 * 2, 2 * 2),
        ("sum", 2 * 9 * 2 / 3, 0),
        ("spread", 0, 2 * 9 * 2 / 3),
    ],
)
def test_the_bytes_of_the_middle_shard(kind, there, back):
    sizes = () if kind in ("sum", "spread") else SIZES
    one = ShardExchange(kind, "v", "w", dim=1, sizes=sizes, halo=2)
    assert exchange_bytes(one, 1, SHARDS, 9.0) == pytest.approx((there, back))
    without = ShardExchange(kind, "v", "w", dim=1, sizes=sizes, halo=2, has_gradient=False)
    assert exchange_bytes(without, 1, SHARDS, 9.0) == pytest.approx((there, 0))
    first = {"gather": 2 * 3, "collect": 2 * 3, "halo": 2}.get(kind, there)  # a shorter slice, and one neighbour
    assert exchange_bytes(one, 0, SHARDS, 9.0)[0] == pytest.approx(first)
