"""Convolutions by output channels, and by groups (AlexNet's two towers)."""

from typing import Any

import torch
from torch import nn

from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["ConvChannels", "ConvGroups", "NarrowInput"]

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d


class NarrowInput:
    """Has a module read some channels alone of what it is given."""

    def __init__(self, channels: slice) -> None:
        self.channels = channels

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (args[0][:, self.channels],)


def _local(module: AnyConv, inputs: int, outputs: int, groups: int) -> nn.Module:
    options: dict[str, Any] = {
        "kernel_size": module.kernel_size,
        "stride": module.stride,
        "padding": module.padding,
        "dilation": module.dilation,
        "padding_mode": module.padding_mode,
        "bias": module.bias is not None,
        "dtype": module.weight.dtype,
    }
    return type(module)(inputs, outputs, groups=groups, device="meta", **options)


@layer(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvChannels(LayerWay):
    """Each shard makes some of the output channels, from the whole input; if there are groups, those of whole ones."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, AnyConv)
        most = module.out_channels if module.groups == 1 else module.groups
        return CutWay("channels", "whole", "sliced", "partial", most=most)

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, AnyConv)
        return Slices(1, part.sizes(module.out_channels, _grain(module)))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert isinstance(module, AnyConv)
        own = part.of(module.out_channels, _grain(module))
        return {"weight": (own,), "bias": (own,)}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, AnyConv)
        own = part.of(module.out_channels, _grain(module))
        outputs = own.stop - own.start
        if module.groups == 1:
            return _local(module, module.in_channels, outputs, 1)
        groups = part.of(module.groups)
        each = module.in_channels // module.groups
        count = groups.stop - groups.start
        local = _local(module, each * count, outputs, count)
        local.register_forward_pre_hook(NarrowInput(slice(groups.start * each, groups.stop * each)))
        return local


def _grain(module: AnyConv) -> int:
    return 1 if module.groups == 1 else module.out_channels // module.groups


@layer(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvGroups(LayerWay):
    """Each shard has whole groups: from its slice of the input channels to its slice of the output channels."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, AnyConv)
        return CutWay("groups", "sliced", "sliced", most=module.groups) if module.groups > 1 else None

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, AnyConv)
        each = module.in_channels // module.groups
        return fitting(part, module.in_channels, each)

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, AnyConv)
        assert part.given is not None
        each = module.in_channels // module.groups
        return Slices(1, tuple(size // each * _grain(module) for size in part.given.sizes))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        made = self.writes(module, part)
        assert made is not None
        return {"weight": (made.of(part.shard),), "bias": (made.of(part.shard),)}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, AnyConv)
        made = self.writes(module, part)
        assert made is not None
        assert part.given is not None
        inputs = part.given.sizes[part.shard]
        groups = inputs * module.groups // module.in_channels
        return _local(module, inputs, made.sizes[part.shard], groups)


def fitting(part: LayerPart, channels: int, grain: int = 1) -> Slices:
    """The slices of channels that there are if they are made of whole grains, else even ones that are."""
    given = part.given
    there = given is not None and given.dim == 1 and given.total == channels
    if given is not None and there and all(size > 0 and size % grain == 0 for size in given.sizes):
        return given
    return Slices(1, part.sizes(channels, grain))
