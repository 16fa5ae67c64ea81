"""What follows the last unit of a chain: the loss of what it returns, there and back."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from gradtide.parallel.split.profile.survey import ValueSize
from gradtide.parallel.split.profile.timing import clock

__all__ = ["loss_seconds"]

REPEATS = 8
_KINDS = {4: torch.float32, 8: torch.float64}


def loss_seconds(outputs: Sequence[ValueSize], samples: int) -> float:
    """Of cross entropy, which stands for whatever is taken, and of counting who is right; the lower quartile."""
    return sum(_seconds(one, samples) for one in outputs if one.has_gradient and len(one.shape) > 1)


def _seconds(size: ValueSize, samples: int) -> float:
    kind = _KINDS.get(size.element_bytes)
    if kind is None:
        return 0.0
    shape = (samples, *size.shape[1:])
    targets, taken = torch.zeros(shape[0], *shape[2:], dtype=torch.int64), []
    for _ in range(REPEATS):
        leaf = torch.rand(shape, dtype=kind).requires_grad_()
        begin = clock()
        functional.cross_entropy(leaf, targets).mul(0.5).backward()
        (leaf.detach().argmax(1) == targets).sum().item()
        taken.append(clock() - begin)
    return sorted(taken)[len(taken) // 4]
