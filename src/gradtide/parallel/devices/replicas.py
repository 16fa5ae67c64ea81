"""A copy of the model on each device, with its gradients in flat buffers that can be synchronised at one go."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError
from gradtide.parallel.devices.pool import Device

__all__ = ["FlatGradients", "Replica", "replicate"]


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
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{type(model).__name__} has no parameter to train; set requires_grad on some")
    return [_copy(model, device) for device in devices]


def _copy(model: nn.Module, device: Device) -> Replica:
    module = copy.deepcopy(model).to(device.torch_device)
    module.zero_grad(set_to_none=True)
    return Replica(device, module, FlatGradients([p for p in module.parameters() if p.requires_grad]))
