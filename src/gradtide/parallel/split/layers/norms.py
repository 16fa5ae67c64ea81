"""Norms that know channels: batch, instance and group norm on slices of channels. (LayerNorm stays whole.)"""

from typing import Any

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.layers.conv import fitting
from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["BatchNormChannels", "GroupNormChannels"]

ByFeature = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
TENSORS = ("weight", "bias", "running_mean", "running_var")


def _flat_input(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    """Slices of features are slices of channels only where there is nothing behind the channels."""
    if args[0].dim() != 2:
        raise ConfigError(
            f"a {type(module).__name__} reads features of a layer that is cut, in {args[0].dim()} dimensions; "
            "leave one of the two whole"
        )


def channel_slices(part: LayerPart, channels: int, grain: int = 1) -> Slices:
    """Slices of channels: those that there are, also if they are slices of features."""
    given = part.given
    if given is not None and given.dim == -1:
        found = fitting(LayerPart(part.shard, part.shards, Slices(1, given.sizes)), channels, grain)
        return given if found.sizes == given.sizes else found
    return fitting(part, channels, grain)


def _watched(local: nn.Module, part: LayerPart) -> nn.Module:
    if part.given is not None and part.given.dim == -1:
        local.register_forward_pre_hook(_flat_input)
    return local


@layer(
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
class BatchNormChannels(LayerWay):
    """Each shard has the statistics of its own channels."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, ByFeature)
        return CutWay("channels", "sliced", "sliced", most=module.num_features)

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, ByFeature)
        return channel_slices(part, module.num_features)

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert part.given is not None
        return dict.fromkeys(TENSORS, (part.given.of(part.shard),))

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, ByFeature)
        assert part.given is not None
        options: dict[str, Any] = {"eps": module.eps, "momentum": module.momentum, "affine": module.affine}
        options |= {"track_running_stats": module.track_running_stats, "device": "meta"}
        held = next((t for t in (module.weight, module.running_mean) if t is not None), None)
        local = type(module)(part.given.sizes[part.shard], dtype=None if held is None else held.dtype, **options)
        return _watched(local, part)


@layer(nn.GroupNorm)
class GroupNormChannels(LayerWay):
    """Each shard has whole groups."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.GroupNorm)
        return CutWay("channels", "sliced", "sliced", most=module.num_groups) if module.num_groups > 1 else None

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, nn.GroupNorm)
        return channel_slices(part, module.num_channels, module.num_channels // module.num_groups)

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert part.given is not None
        return dict.fromkeys(("weight", "bias"), (part.given.of(part.shard),))

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.GroupNorm)
        assert part.given is not None
        channels = part.given.sizes[part.shard]
        groups = channels * module.num_groups // module.num_channels
        dtype = module.weight.dtype if module.affine else None
        return _watched(nn.GroupNorm(groups, channels, module.eps, module.affine, device="meta", dtype=dtype), part)
