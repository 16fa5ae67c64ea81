"""Local response normalisation per tower, or across slices of channels: neighbours lend each other some, a halo."""

import torch
from torch import nn

from gradtide.parallel.split.layers.registry import LayerPart, LayerWay, Slices, layer
from gradtide.parallel.split.layers.response_norm import GroupedResponseNorm
from gradtide.schedule.step.costs import CutWay

__all__ = ["GroupedResponseNormSlices", "ResponseNormHalo", "ResponseNormPart"]


class ResponseNormPart(nn.Module):
    """The norm of some channels, given those and a halo."""

    def __init__(self, norm: nn.LocalResponseNorm, before: int, own: int) -> None:
        super().__init__()
        self.norm = norm
        self.before, self.own = before, own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x) if len(x) else x  # torch's own refuses a batch of no samples
        return result.narrow(1, self.before, self.own)


@layer(nn.LocalResponseNorm)
class ResponseNormHalo(LayerWay):
    """A channel's norm is over size // 2 channels on either side."""

    def way(self, module: nn.Module) -> CutWay | None:
        return CutWay("halo", "sliced", "sliced")

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        given = part.given
        if given is None or given.dim != 1 or min(given.sizes) < self.halo(module):
            return None
        return given

    def halo(self, module: nn.Module) -> int:
        assert isinstance(module, nn.LocalResponseNorm)
        return module.size // 2

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, nn.LocalResponseNorm)
        assert part.given is not None
        norm = nn.LocalResponseNorm(module.size, module.alpha, module.beta, module.k)
        return ResponseNormPart(norm, self.halo(module) if part.shard else 0, part.given.sizes[part.shard])


@layer(GroupedResponseNorm)
class GroupedResponseNormSlices(LayerWay):
    """Slices of whole groups, AlexNet's towers, need nothing of each other."""

    def way(self, module: nn.Module) -> CutWay | None:
        assert isinstance(module, GroupedResponseNorm)
        return CutWay("groups", "any", "any", most=module.groups) if module.groups > 1 else None

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        assert isinstance(module, GroupedResponseNorm)
        given = part.given
        if given is None or given.dim != 1 or given.total % module.groups:
            return None
        each = given.total // module.groups
        return given if all(size % each == 0 for size in given.sizes) else None

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        assert isinstance(module, GroupedResponseNorm)
        assert part.given is not None
        groups = part.given.sizes[part.shard] * module.groups // part.given.total
        return GroupedResponseNorm(module.size, module.alpha, module.beta, module.k, groups)
