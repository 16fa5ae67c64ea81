"""What an exchange gives each shard, as arithmetic on what all shards have; and the bytes that a shard sends for it.

Whoever runs exchanges, on threads or processes, gives the same: sums are taken in the shards' order.
"""

from collections.abc import Sequence

import torch

from gradtide.parallel.split.cut.local import ShardExchange

__all__ = ["exchange_bytes", "exchanged", "exchanged_back"]


def exchanged(exchange: ShardExchange, shard: int, held: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a shard gets, given what each of them has."""
    match exchange.kind:
        case "gather" | "collect":
            return torch.cat(list(held), exchange.dim)
        case "sum":
            return _sum(held)
        case "spread":
            return held[shard]
        case "slice":
            return _slice(exchange, shard, held[shard])
        case "halo":
            return torch.cat(
                [held[other].narrow(exchange.dim, *rows) for other, *rows in _rows(exchange, shard)], exchange.dim
            )


def exchanged_back(exchange: ShardExchange, shard: int, held: Sequence[torch.Tensor]) -> torch.Tensor:
    """The gradient that a shard gets of what it put in, given each one's gradient of what it got."""
    match exchange.kind:
        case "gather":
            return _sum([_slice(exchange, shard, gradient) for gradient in held])
        case "collect":
            return _slice(exchange, shard, held[shard])
        case "sum":
            return held[shard]
        case "spread":
            return _sum(held)
        case "slice":
            return torch.cat(list(held), exchange.dim)
        case "halo":
            return _halo_back(exchange, shard, held)


def exchange_bytes(exchange: ShardExchange, shard: int, shards: int, whole_bytes: float) -> tuple[float, float]:
    """What a shard sends there and back, for a sample of which all shards' values together have so many bytes.

    Sums are sent as slices are that each shard adds up, and then as the sum of each.
    """
    summed = 2 * whole_bytes * (shards - 1) / shards
    own, step = whole_bytes, 0.0
    if exchange.sizes:
        own = whole_bytes * exchange.sizes[shard] / sum(exchange.sizes)
        step = whole_bytes * exchange.halo / sum(exchange.sizes)
    neighbours = (shard > 0) + (shard < shards - 1)
    there, back = {
        "gather": (own * (shards - 1), whole_bytes - own),
        "collect": (own * (shards - 1), 0.0),
        "sum": (summed, 0.0),
        "spread": (0.0, summed),
        "slice": (0.0, own * (shards - 1)),
        "halo": (step * neighbours, step * neighbours),
    }[exchange.kind]
    return there, back if exchange.has_gradient else 0.0


def _sum(held: Sequence[torch.Tensor]) -> torch.Tensor:
    total = held[0]
    for part in held[1:]:
        total = total + part
    return total


def _slice(exchange: ShardExchange, shard: int, whole: torch.Tensor) -> torch.Tensor:
    return whole.narrow(exchange.dim, sum(exchange.sizes[:shard]), exchange.sizes[shard])


def _rows(exchange: ShardExchange, shard: int) -> list[tuple[int, int, int]]:
    """What a shard gets of a halo: (whose, first row of their slice, how many), in order."""
    sizes, halo = exchange.sizes, exchange.halo
    rows = [(shard, 0, sizes[shard])]
    if shard > 0:
        rows.insert(0, (shard - 1, sizes[shard - 1] - halo, halo))
    if shard < len(sizes) - 1:
        rows.append((shard + 1, 0, halo))
    return rows


def _halo_back(exchange: ShardExchange, shard: int, held: Sequence[torch.Tensor]) -> torch.Tensor:
    """Each one's gradient of this shard's rows, its own first."""
    shape = list(held[shard].shape)
    shape[exchange.dim] = exchange.sizes[shard]
    total = held[shard].new_zeros(shape)
    for reader in (shard, shard - 1, shard + 1):
        if 0 <= reader < len(exchange.sizes):
            at = 0
            for owner, first, count in _rows(exchange, reader):
                if owner == shard:
                    total.narrow(exchange.dim, first, count).add_(held[reader].narrow(exchange.dim, at, count))
                at += count
    return total
