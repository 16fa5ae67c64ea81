"""Adds one tensor per device up and hands the sum back to every device, all in one process, by a schedule.

The planner's strategies differ in who does the adding and so in which wires carry what: `root` adds on device 0, `host`
on the CPU, `sharded` gives each device a part to add, `ring` passes parts round. Each adds in an order of its own, the
same one on every run.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from gradtide.collective.executors.choose import Strategy, choose
from gradtide.collective.executors.execute import Each, execute_in_process
from gradtide.collective.executors.programme import chunk_bounds
from gradtide.errors import ConfigError
from gradtide.schedule.model import Schedule
from gradtide.topology.model import Link, Node, NodeKind, Topology

__all__ = ["check_strategy", "sum_over_devices"]


def sum_over_devices(tensors: Sequence[Tensor], strategy: Strategy = "sharded", each: Each | None = None) -> int:
    """Replaces each device's tensor by the sum of all; returns the bytes that went between devices.

    `tensors[i]` lives on device i and all have one shape and dtype. `strategy` is a name that `gradtide plan` knows,
    `auto`, or a schedule. `each` says how to run work on the devices (see `DevicePool.run`); without it, they are
    served in turn.
    """
    _refuse_bare(tensors)
    if not tensors:
        raise ConfigError("sum_over_devices got no tensors; pass one per device")
    first = tensors[0]
    schedule = _schedule(strategy, len(tensors), first.nbytes)
    execute_in_process(schedule, tensors, "sum", each)
    return _elements_sent(schedule, first.numel()) * first.element_size()


def _refuse_bare(tensors: object) -> None:
    if isinstance(tensors, Tensor):
        raise ConfigError(
            "sum_over_devices takes a list with one tensor per device of this process, not a tensor of shape "
            f"{list(tensors.shape)}; to add up over workers, use gradtide.Group.from_environment().all_reduce(tensor)"
        )


def all_reduce(tensors: Sequence[Tensor], strategy: Strategy = "sharded", each: Each | None = None) -> int:
    """What sum_over_devices was called before. It goes with 0.3.0."""
    warnings.warn(
        "all_reduce of a list of tensors is called gradtide.sum_over_devices now, for it adds up over the devices of "
        "one process; between processes it is Group.all_reduce",
        DeprecationWarning,
        stacklevel=2,
    )
    return sum_over_devices(tensors, strategy, each)


def check_strategy(strategy: Strategy, devices: int) -> None:
    """Raises what `sum_over_devices` of so many devices would."""
    _schedule(strategy, devices, 1_000_000)


@lru_cache(maxsize=256)
def _schedule(strategy: Strategy, devices: int, size_bytes: int) -> Schedule:
    return choose(strategy, _wired(devices), size_bytes)


@lru_cache(maxsize=256)
def _elements_sent(schedule: Schedule, count: int) -> int:
    bounds = chunk_bounds(schedule, count)
    return sum(bounds[op.chunk][1] - bounds[op.chunk][0] for op in schedule.ops)


def _wired(devices: int) -> Topology:
    """Devices of one process as the planner sees them: on one PCIe switch with their CPU, until somebody measures."""
    names = [f"device{index}" for index in range(devices)]
    nodes = [Node(name, NodeKind.DEVICE, "host") for name in names]
    if devices > 1:
        nodes += [Node("cpu", NodeKind.HOST, "host"), Node("switch", NodeKind.SWITCH, "host")]
        names.append("cpu")
    links = [
        link
        for name in names
        for link in (Link(name, "switch", 16e9, 1.5e-6), Link("switch", name, 16e9, 1.5e-6))
        if devices > 1
    ]
    return Topology("one process", tuple(nodes), tuple(links))
