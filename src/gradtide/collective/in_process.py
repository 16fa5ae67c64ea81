"""Adds one tensor per device up and hands the sum back to every device, all in one process.

Three ways, which differ in who does the adding and so in which wires carry what:

    root       device 0 adds, then sends the sum to everybody
    host       the CPU adds, then sends the sum to everybody
    sharded    device i adds part i of everybody's tensor, then everybody collects the parts

Each adds in the order of the devices, so all three give the same bits.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradtide.errors import ConfigError

__all__ = ["STRATEGIES", "Each", "all_reduce", "check_strategy", "one_by_one"]

Each = Callable[[Callable[[int], None]], object]  # runs a function for every device's index, side by side if it can


def one_by_one(count: int) -> Each:
    """An `each` that runs the devices in turn: GPUs work side by side even so, since their kernels are queued."""

    def each(work: Callable[[int], None]) -> None:
        for index in range(count):
            work(index)

    return each


def all_reduce(tensors: Sequence[Tensor], strategy: str = "sharded", each: Each | None = None) -> int:
    """Replaces each device's tensor by the sum of all; returns the bytes that went between devices.

    `tensors[i]` lives on device i and all have one shape and dtype. `each` says how to run work on the devices (see
    `DevicePool.run`); without it, they are served in turn.
    """
    _check(tensors, strategy)
    if len(tensors) == 1:
        return 0
    return STRATEGIES[strategy]([tensor.view(-1) for tensor in tensors], each or one_by_one(len(tensors)))


def check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}")


def _check(tensors: Sequence[Tensor], strategy: str) -> None:
    check_strategy(strategy)
    if not tensors:
        raise ConfigError("all_reduce got no tensors; pass one per device")
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
            raise ConfigError(
                f"all_reduce: device {index} has {tuple(tensor.shape)} {tensor.dtype}, "
                f"but device 0 has {tuple(first.shape)} {first.dtype}; all must be alike"
            )
        if not tensor.is_contiguous():
            raise ConfigError(f"all_reduce: device {index}'s tensor is not contiguous; pass a contiguous one")


def _root(tensors: list[Tensor], each: Each) -> int:
    total = tensors[0]
    for tensor in tensors[1:]:
        total += tensor.to(total.device)

    def receive(index: int) -> None:
        if index > 0:
            tensors[index].copy_(total)

    each(receive)
    return 2 * (len(tensors) - 1) * total.nbytes


def _host(tensors: list[Tensor], each: Each) -> int:
    total = tensors[0].to("cpu", copy=True)
    for tensor in tensors[1:]:
        total += tensor.to("cpu")

    def receive(index: int) -> None:
        tensors[index].copy_(total)

    each(receive)
    return 2 * len(tensors) * total.nbytes


def _sharded(tensors: list[Tensor], each: Each) -> int:
    count = len(tensors)
    parts = [torch.tensor_split(tensor, count) for tensor in tensors]  # parts[i][p]: device i's part p

    def add_my_part(index: int) -> None:
        _sum_in_order([parts[i][index] for i in range(count)], into=index)

    def collect_the_others(index: int) -> None:
        for owner in range(count):
            if owner != index:
                parts[index][owner].copy_(parts[owner][owner])

    each(add_my_part)
    each(collect_the_others)
    return 2 * (count - 1) * tensors[0].nbytes


def _sum_in_order(parts: list[Tensor], into: int) -> None:
    """parts[into] = parts[0] + parts[1] + …, in that order whoever adds, and in place where that can be."""
    mine = parts[into]
    first, second = (part.to(mine.device) for part in parts[:2])
    total = torch.add(first, second, out=mine) if into < 2 else torch.add(first, second)
    for part in parts[2:]:
        total += part.to(mine.device)
    if total is not mine:
        mine.copy_(total)


STRATEGIES: dict[str, Callable[[list[Tensor], Each], int]] = {"root": _root, "host": _host, "sharded": _sharded}
