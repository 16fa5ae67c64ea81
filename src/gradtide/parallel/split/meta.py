"""Models on the meta device: first values, module by module, the same whoever makes them and in whatever order.

A module's values come from its `reset_parameters`, with random numbers that start from the seed and the module's name
in the model. So every layout of a model starts the same, and no process has to hold all of it.
"""

import copy
import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError

__all__ = ["initial_tensors", "materialise"]


def initial_tensors(model: nn.Module, seed: int, wanted: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a model by name, whole; of tied ones the first. Module by module, as they are taken.

    `wanted` names those that are needed: modules that have none of them are left out.
    """
    known: set[int] = set()
    for path, module in model.named_modules():
        names = {name: _join(path, name) for name, tensor in _own(module).items() if id(tensor) not in known}
        known |= {id(tensor) for tensor in _own(module).values()}
        if any(wanted is None or full in wanted for full in names.values()):
            made = _made(module, path, seed)
            yield from ((full, made[name]) for name, full in names.items() if wanted is None or full in wanted)


def materialise(module: nn.Module, name: str, seed: int) -> nn.Module:
    """The module, with first values for whatever of it is on the meta device. `name` is its place in the model.

    Tensors that are tied within it stay so; the first to have one says its values.
    """
    done: dict[int, Tensor] = {}
    for path, part in module.named_modules():
        own = _own(part)
        if any(tensor.is_meta and id(tensor) not in done for tensor in own.values()):
            for key, tensor in _made(part, _join(name, path), seed).items():
                if own[key].is_meta:
                    done.setdefault(id(own[key]), tensor)
        for tensors in (part._parameters, part._buffers):
            for key, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    tensors[key] = done[id(tensor)]
    return module


def _join(path: str, name: str) -> str:
    return ".".join(filter(None, (path, name)))


def _own(module: nn.Module) -> dict[str, Tensor]:
    every: dict[str, Any] = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in every.items() if tensor is not None}


def _made(module: nn.Module, path: str, seed: int) -> dict[str, Tensor]:
    """A module's own tensors, with values. Refused where its reset_parameters leaves out some of them."""
    where = f"{path or 'the model'} ({type(module).__name__})"
    other: Any = copy.copy(module)
    other._parameters = {name: _unset(tensor) for name, tensor in module._parameters.items()}
    other._buffers = {name: _unset(tensor) for name, tensor in module._buffers.items()}
    if not callable(getattr(other, "reset_parameters", None)):
        raise ConfigError(
            f"{where} has parameters or buffers but no reset_parameters(), so that nobody knows its first values; "
            "give it one, or make the model on a real device"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_start(seed, path))
        other.reset_parameters()
    made = _own(other)
    for name, tensor in made.items():
        if _is_unset(tensor):
            raise ConfigError(f"{where}: its reset_parameters() leaves {name} without values; let it set all it has")
    return made


def _start(seed: int, path: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {path}".encode(), digest_size=8).digest()) >> 1


def _unset(tensor: Tensor | None) -> Tensor | None:
    """One like it on the CPU whose every element says that nobody has set it."""
    if tensor is None:
        return None
    made = torch.empty(tensor.shape, dtype=tensor.dtype)
    if made.is_floating_point() or made.is_complex():
        made.fill_(torch.nan)
    elif made.dtype is not torch.bool:
        made.fill_(torch.iinfo(made.dtype).min)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _is_unset(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    if tensor.dtype is torch.bool:
        return True  # two values say nothing about who set them
    lowest = torch.iinfo(tensor.dtype).min
    return bool(lowest < 0 and (tensor == lowest).any())
