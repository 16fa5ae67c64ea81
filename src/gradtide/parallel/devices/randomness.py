"""A random generator a device, so that a model with dropout gives the same bits on every run.

On CPU, torch has one generator for the whole process: threads that draw from it take turns as they happen to come.
`DeviceRandom` hands each draw of its own thread a generator of that device instead. CUDA devices have their own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradtide.errors import ConfigError
from gradtide.parallel.devices.pool import Device

__all__ = ["DeviceRandom", "seed_devices"]


def seed_devices(devices: Sequence[Device], seed: int) -> list["DeviceRandom | None"]:
    """Gives every device a generator of its own, seeded apart from the others. CUDA devices have theirs: None."""
    made: list[DeviceRandom | None] = []
    for device in devices:
        own_seed = seed * len(devices) + device.index
        if device.torch_device.type == "cuda":
            torch.cuda.default_generators[device.torch_device.index].manual_seed(own_seed)
            made.append(None)
        else:
            made.append(DeviceRandom(torch.Generator().manual_seed(own_seed)))
    return made


class DeviceRandom(TorchDispatchMode):
    """While it is entered in a thread, every random operation of that thread draws from `generator`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator
        self.draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.draws += 1
        return _taking_a_generator(func)(*args, **{**kwargs, "generator": kwargs.get("generator") or self.generator})


def _taking_a_generator(func: Any) -> Any:
    """The operation itself, or its overload that accepts a generator."""
    for candidate in (func, *(getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads())):
        names = {argument.name for argument in candidate._schema.arguments}
        if "generator" in names and {argument.name for argument in func._schema.arguments} <= names:
            return candidate
    raise ConfigError(
        f"the model calls {func} in forward, which can't draw from a generator of its own, so runs on several CPU "
        "devices would not be repeatable; draw with torch.rand(..., generator=...) or bernoulli_, or use one device"
    )
