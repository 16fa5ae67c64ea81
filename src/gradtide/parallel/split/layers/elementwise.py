"""Layers that follow what they read: element by element, channel by channel, or flattened."""

from torch import nn

from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer
from gradtide.schedule.step.costs import CutWay

__all__ = ["Elementwise", "FlattenSlices", "PReLUChannels", "PerChannel"]

FOLLOWS = CutWay("slices", "any", "any")


@layer(
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU),
    *(nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink),
    *(nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold, nn.Dropout),
)
class Elementwise(LayerWay):
    """Any slices will do."""

    def way(self, module: nn.Module) -> CutWay | None:
        return FOLLOWS


@layer(
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.LPPool1d, nn.LPPool2d, nn.LPPool3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.Upsample),
    *(nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
class PerChannel(LayerWay):
    """Slices of channels will do."""

    def way(self, module: nn.Module) -> CutWay | None:
        return None if getattr(module, "return_indices", False) else FOLLOWS

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        return part.given if part.given is not None and part.given.dim == 1 else None


@layer(nn.PReLU)
class PReLUChannels(LayerWay):
    """With a slope a channel. (A single slope's gradient would have to be added up over the shards.)"""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.PReLU)
        slopes = module.num_parameters
        return CutWay("channels", "sliced", "sliced", most=slopes) if slopes > 1 else None

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, nn.PReLU)
        given = part.given
        if given is not None and given.dim == 1 and given.total == module.num_parameters:
            return given
        return Slices(1, part.sizes(module.num_parameters))

    def pieces(self, module: nn.Module, part: LayerPart) -> dict[str, Index | None]:
        assert part.given is not None
        return {"weight": (part.given.of(part.shard),)}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.PReLU)
        assert part.given is not None
        return nn.PReLU(part.given.sizes[part.shard], device="meta", dtype=module.weight.dtype)


@layer(nn.Flatten)
class FlattenSlices(LayerWay):
    """Slices of channels become slices of features, where a later layer tells how many features there are."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, nn.Flatten)
        return FOLLOWS if (module.start_dim, module.end_dim) == (1, -1) else None

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        return flattened(part)


def flattened(part: LayerPart) -> Slices | None:
    """Slices of what is flattened but for the samples."""
    given, features = part.given, part.features
    if given is None or features is None or features % given.total:
        return None
    times = features // given.total
    if given.dim == 1 or (given.dim == -1 and times == 1):
        return Slices(-1, tuple(size * times for size in given.sizes))
    return None
