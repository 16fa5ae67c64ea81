"""A copy of the model on each device, with its gradients in flat buffers that can be synchronised at one go."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError
from gradtide.parallel.devices.pool import Device

__all__ = ["FirstEdited", "FlatGradients", "Replica", "replicate"]

_PLAIN = bool | int | float | complex | str | None


class FlatGradients:
    """One flat buffer a dtype, with a view in it for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.buffers: list[Tensor] = []
        views: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
            alike = [p for p in self.parameters if p.dtype == dtype]
            flat = torch.zeros(sum(p.numel() for p in alike), dtype=dtype, device=alike[0].device)
            pieces = flat.split([p.numel() for p in alike])
            views |= {id(p): piece.view(p.shape) for p, piece in zip(alike, pieces, strict=True)}
            self.buffers.append(flat)
        self.views = [views[id(p)] for p in self.parameters]

    def collect(self) -> list[bool]:
        """Copies what backward left in .grad into the buffers; returns which parameters had a gradient."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if len(grads) == len(self.parameters):
            torch._foreach_copy_(self.views, grads)
            return [True] * len(grads)
        for p, view in zip(self.parameters, self.views, strict=True):
            view.zero_() if p.grad is None else view.copy_(p.grad)
        return [p.grad is not None for p in self.parameters]

    def clear(self) -> None:
        """What a device without samples contributes: nothing."""
        for buffer in self.buffers:
            buffer.zero_()

    def hand_out(self, used: Sequence[bool]) -> None:
        """Points .grad at the synchronised values. A parameter that no device used keeps None, as in plain PyTorch."""
        for p, view, is_used in zip(self.parameters, self.views, used, strict=True):
            p.grad = view if is_used else None


@dataclass(frozen=True, slots=True)
class Replica:
    """The model's copy on one device."""

    device: Device
    module: nn.Module
    gradients: FlatGradients


def replicate(model: nn.Module, devices: Sequence[Device]) -> list[Replica]:
    """Copies the model to each of the devices that `find_devices` gave.

    On CPU too every copy is real: `.to("cpu")` alone would only alias. Raises ConfigError for a model without a
    parameter to train.
    """
    if any(isinstance(device, str | int) for device in devices):
        raise ConfigError(f"devices {devices!r} were not looked up; say gradtide.find_devices({devices!r})")
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no parameter to train; set requires_grad on some")
    sparse = [name for name, module in model.named_modules() if getattr(module, "sparse", False) is True]
    if sparse and len(devices) > 1:
        raise ConfigError(
            f"{sparse[0] or type(model).__name__} gives sparse gradients, which devices of one process don't add up; "
            "make it with sparse=False, or train on one device, of several workers if need be"
        )
    return [_copy(model, device) for device in devices]


def _copy(model: nn.Module, device: Device) -> Replica:
    module = copy.deepcopy(model).to(device.torch_device)
    module.zero_grad(set_to_none=True)
    return _replica(device, module)


def _replica(device: Device, module: nn.Module) -> Replica:
    return Replica(device, module, FlatGradients([p for p in module.parameters() if p.requires_grad]))


class FirstEdited:
    """Made before the program may change the first replica; `follow` then makes all replicas as it is."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas, module = replicas, replicas[0].module
        self._parameters, self._attributes = list(module.named_parameters()), _plain_attributes(module)

    def follow(self, *, alone: bool = True) -> list[Replica]:
        """Raises ConfigError where it consists of other things than it did, unless it is the only one there is."""
        first, others = self._replicas[0].module, self._replicas[1:]
        if others or not alone:
            self._check_parameters()
        for replica in others:
            _check_outline(first, replica.module)
            with torch.no_grad():
                for mine, its in zip(replica.module.parameters(), first.parameters(), strict=True):
                    mine.copy_(its)
                    mine.requires_grad_(its.requires_grad)
                for own, other in zip(replica.module.buffers(), first.buffers(), strict=True):
                    own.copy_(other)
            now = _plain_attributes(first)
            for module, was, its_now in zip(replica.module.modules(), self._attributes, now, strict=True):
                vars(module).update({name: v for name, v in its_now.items() if name not in was or was[name] != v})
        return [
            replica if _asking(replica.module) == set(map(id, replica.gradients.parameters)) else _rebuilt(replica)
            for replica in self._replicas
        ]

    @property
    def set_attribute(self) -> str:
        """The first plain attribute that is not what it was; nothing if all are."""
        names = [name for name, _ in self._replicas[0].module.named_modules()]
        for name, was, now in zip(names, self._attributes, _plain_attributes(self._replicas[0].module), strict=True):
            for attribute, value in now.items():
                if attribute not in was or was[attribute] != value:
                    return f"{name}.{attribute}".lstrip(".")
        return ""

    def _check_parameters(self) -> None:
        before, now = dict(self._parameters), dict(self._replicas[0].module.named_parameters())
        name = next((name for name in {**before, **now} if before.get(name) is not now.get(name)), None)
        if name is not None:
            raise ConfigError(_OTHER_THINGS.format(name=name))


_OTHER_THINGS = (
    "{name} was added, replaced or taken away in a callback, but fit trains the copies that it has made; change values "
    "in place"
)


def _plain_attributes(module: nn.Module) -> list[dict[str, Any]]:
    """What a program may set on modules besides tensors: `training`, a dropout's `p`, a temperature."""
    return [{name: v for name, v in vars(one).items() if isinstance(v, _PLAIN)} for one in module.modules()]


def _asking(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters() if p.requires_grad}


def _rebuilt(replica: Replica) -> Replica:
    return _replica(replica.device, replica.module)


def _check_outline(first: nn.Module, other: nn.Module) -> None:
    its, own = _outline(first), _outline(other)
    name = next((name for name in {**its, **own} if its.get(name) != own.get(name)), None)
    if name is not None:
        raise ConfigError(_OTHER_THINGS.format(name=name or "the model"))


def _outline(module: nn.Module) -> dict[str, Any]:
    kinds: dict[str, Any] = {name: type(one) for name, one in module.named_modules()}
    return kinds | {name: tensor.shape for name, tensor in module.named_buffers()}
