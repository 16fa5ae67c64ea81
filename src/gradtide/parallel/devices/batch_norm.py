"""Batch normalisation whose mean and variance are those of the whole batch, not of one device's shard."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradtide.errors import DataError
from gradtide.parallel.devices.pool import DevicePool
from gradtide.parallel.devices.replicas import Replica

__all__ = ["NormExchange", "SharedBatchNorm", "combine", "has_batch_norm", "share_batch_norm"]


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a part of one sample has no variance to it."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


class NormExchange(Protocol):
    """Where the parts of a batch meet: hands in one part's value and gives everybody's."""

    def exchange(self, index: int, value: Any) -> list[Any]: ...


def share_batch_norm(replicas: list[Replica], pool: DevicePool, meeting: NormExchange | None = None) -> None:
    """Makes every batch normalisation of the replicas use the statistics of all shards together. `meeting`: where those
    of other workers come, too."""
    for replica in replicas:
        for parent in list(replica.module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _BatchNorm):
                    setattr(parent, name, SharedBatchNorm(child, meeting or pool.meeting, replica.device.index))


class SharedBatchNorm(nn.Module):
    """Takes over a batch normalisation: the same parameters and buffers under the same names."""

    def __init__(self, plain: _BatchNorm, meeting: NormExchange, index: int) -> None:
        super().__init__()
        self.plain = [plain]  # in a list, so that it is no child and adds no names to state_dict
        self.weight, self.bias = plain.weight, plain.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(plain, name))
        self.meeting, self.index = meeting, index
        self.training = plain.training

    def forward(self, inputs: Tensor) -> Tensor:
        plain = self.plain[0]
        if not (self.training or plain.running_mean is None):
            plain.training = False
            return plain(inputs)  # type: ignore[no-any-return]
        plain._check_input_dim(inputs)
        outputs, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, plain.eps, self.meeting, self.index
        )
        if self.training and plain.running_mean is not None:
            self._track(plain, mean, variance * (count / max(count - 1, 1)))
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def _track(plain: _BatchNorm, mean: Tensor, unbiased: Tensor) -> None:
        assert plain.running_mean is not None
        assert plain.running_var is not None
        assert plain.num_batches_tracked is not None
        plain.num_batches_tracked.add_(1)
        momentum = 1.0 / float(plain.num_batches_tracked) if plain.momentum is None else plain.momentum
        plain.running_mean.lerp_(mean, momentum)
        plain.running_var.lerp_(unbiased, momentum)


class _Normalise(torch.autograd.Function):
    """Normalises one shard by the statistics of all; in backward, exchanges the two sums that the gradient needs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, meeting: NormExchange, index: int
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        narrow, x = (
            x.dtype,
            x.to(torch.promote_types(x.dtype, torch.float32)),
        )  # of bf16: float32, as torch does
        over = [d for d in range(x.dim()) if d != 1]
        mean, square, count = x.mean(over), x.var(over, correction=0), x.numel() // x.shape[1]
        parts = meeting.exchange(index, (mean, square, count))
        mean, variance, total = combine(parts, x.device)
        if total == 1:
            raise DataError(
                "batch normalisation needs more than one value a channel, and a batch has one sample; leave out the "
                "last batch of an epoch (drop_last), or take another batch size"
            )
        scale = torch.rsqrt(variance + eps)
        normal = (x - _wide(mean, x)) * _wide(scale, x)
        ctx.save_for_backward(normal, scale, weight)
        ctx.over, ctx.total, ctx.meeting, ctx.index, ctx.has_bias = over, total, meeting, index, bias is not None
        y = normal if weight is None else normal * _wide(weight, x)
        y = y.clone() if bias is None else y + _wide(bias, x)
        ctx.mark_non_differentiable(mean, variance)
        return y.to(narrow), mean, variance, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        normal, scale, weight = ctx.saved_tensors
        narrow, grad = grad.dtype, grad.to(normal.dtype)
        own_sum, own_dot = grad.sum(ctx.over), (grad * normal).sum(ctx.over)
        parts = ctx.meeting.exchange(ctx.index, (own_sum, own_dot))
        whole_sum = sum(s.to(grad.device) for s, _ in parts) / ctx.total
        whole_dot = sum(d.to(grad.device) for _, d in parts) / ctx.total
        factor = scale if weight is None else scale * weight
        dx = (grad - _wide(whole_sum, grad) - normal * _wide(whole_dot, grad)) * _wide(factor, grad)
        return dx.to(narrow), None if weight is None else own_dot, own_sum if ctx.has_bias else None, None, None, None


def combine(parts: list[tuple[Tensor, Tensor, int]], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Mean and variance of the union of shards: Chan, Golub and LeVeque's formula, which does not cancel."""
    total = sum(count for _, _, count in parts)
    mean = sum((m.to(device) * (count / total) for m, _, count in parts), start=torch.zeros((), device=device))
    variance = sum(
        ((v.to(device) + (m.to(device) - mean) ** 2) * (count / total) for m, v, count in parts),
        start=torch.zeros((), device=device),
    )
    return mean, variance, total


def _wide(vector: Tensor, like: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (like.dim() - 2))
