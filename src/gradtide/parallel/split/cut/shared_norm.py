"""Batch norm over all copies of a stage: they add their statistics up, forward and backward.

(parallel/devices/batch_norm.py does that where devices are threads that meet, and each has samples.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gradtide.errors import DataError

__all__ = ["SHAREABLE", "CopiesBatchNorm"]

SHAREABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
AddUp = Callable[[torch.Tensor], torch.Tensor]  # over the copies, in their order; all of them get the same


class CopiesBatchNorm(nn.Module):
    """A batch norm whose `add_up` the runner sets before training: it is called by all copies, equally often.

    It is called twice in a forward and once in a backward, also by a copy that has no samples.
    """

    add_up: AddUp | None = None

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        if not norm.training and norm.running_mean is not None:
            result: torch.Tensor = norm(x)
            return result
        assert self.add_up is not None, "nobody has said who adds the copies' statistics up"
        norm._check_input_dim(x)
        for check in norm._forward_pre_hooks.values():
            check(norm, (x,))
        mean, var, count = _statistics(x.detach(), self.add_up)
        if norm.training and norm.running_mean is not None:
            _remember(norm, mean, var, count)
        scale = torch.rsqrt(var + norm.eps)
        normal: torch.Tensor = _NormaliseOverCopies.apply(x, mean, scale, count, self.add_up)  # type: ignore[no-untyped-call]
        return normal * _along(norm.weight, x) + _along(norm.bias, x) if norm.affine else normal


def _statistics(x: torch.Tensor, add_up: AddUp) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean, variance (by the count, as normalising takes it) and count of all copies; the variance around the mean."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    own = x.numel() // max(1, x.shape[1])
    exact = torch.float64  # counts above 2^24 are no numbers of float32
    sums = add_up(torch.cat([x.sum(dims, dtype=exact), torch.tensor([own], dtype=exact, device=x.device)]))
    count = float(sums[-1])
    if count <= 1:
        raise DataError("batch norm got one value a channel, which has no variance; give it a larger batch")
    mean = (sums[:-1] / count).to(x.dtype)
    var = add_up((x - _along(mean, x)).square().sum(dims, dtype=exact)) / count
    return mean, var.to(x.dtype), count


def _remember(norm: nn.Module, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
    assert isinstance(norm, SHAREABLE)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.mul_(1 - share).add_(mean, alpha=share)
        norm.running_var.mul_(1 - share).add_(var, alpha=share * count / (count - 1))


def _along(features: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return features.view(1, -1, *[1] * (x.dim() - 2))


class _NormaliseOverCopies(torch.autograd.Function):
    """(x - mean) * scale, where both depend on all copies' x."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, count: float, add_up: AddUp
    ) -> torch.Tensor:
        normal = (x - _along(mean, x)) * _along(scale, x)
        ctx.save_for_backward(normal, scale)
        ctx.count, ctx.add_up = count, add_up
        return normal

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = gradients
        normal, scale = ctx.saved_tensors
        dims = [dim for dim in range(normal.dim()) if dim != 1]
        sums = ctx.add_up(torch.stack([gradient.sum(dims), (gradient * normal).sum(dims)])) / ctx.count
        found = gradient - _along(sums[0], normal) - normal * _along(sums[1], normal)
        return found * _along(scale, normal), None, None, None, None
