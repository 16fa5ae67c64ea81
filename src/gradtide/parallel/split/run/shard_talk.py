"""An exchange among the shards of a copy, over whatever they speak over."""

from collections.abc import Sequence

from torch import Tensor

from gradtide.parallel.split.cut.exchanges import exchanged, exchanged_back
from gradtide.parallel.split.cut.local import ShardExchange
from gradtide.parallel.split.run.speaking.communicator import Communicator

__all__ = ["exchange_back", "exchange_there"]


def exchange_there(
    exchange: ShardExchange, value: Tensor, shard: int, devices: Sequence[int], communicator: Communicator
) -> Tensor:
    """What this shard gets. `devices`: of the shards, in their order."""
    match exchange.kind:
        case "sum":
            return communicator.add_up(value, devices)
        case "gather" | "collect" | "halo":
            return exchanged(
                exchange, shard, communicator.gather(value, devices, _shapes(value, exchange, exchange.sizes))
            )
        case _:
            return exchanged(exchange, shard, [value] * len(devices))


def exchange_back(
    exchange: ShardExchange, gradient: Tensor, shard: int, devices: Sequence[int], communicator: Communicator
) -> Tensor:
    """The gradient of what this shard gave, from the gradient of what it got."""
    match exchange.kind:
        case "spread":
            return communicator.add_up(gradient, devices)
        case "gather":  # each gets the others' gradients of its own slice, and adds them up in the shards' order
            return _added(communicator.swap(gradient.split(list(exchange.sizes), exchange.dim), devices))
        case "slice":
            shapes = _shapes(gradient, exchange, exchange.sizes)
            return exchanged_back(exchange, shard, communicator.gather(gradient, devices, shapes))
        case "halo":
            last = len(devices) - 1
            sizes = [size + exchange.halo * ((at > 0) + (at < last)) for at, size in enumerate(exchange.sizes)]
            shapes = _shapes(gradient, exchange, sizes)
            return exchanged_back(exchange, shard, communicator.gather(gradient, devices, shapes))
        case _:
            return exchanged_back(exchange, shard, [gradient] * len(devices))


def _added(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _shapes(like: Tensor, exchange: ShardExchange, sizes: Sequence[int]) -> list[list[int]]:
    """Of each shard's tensor: they differ in the length of their slices."""
    found = []
    for size in sizes:
        shape = list(like.shape)
        shape[exchange.dim] = size
        found.append(shape)
    return found
