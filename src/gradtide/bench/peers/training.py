"""What the contenders of bench train and bench overlap share: a batch, and a step on it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LR", "Batch", "Step", "plain_step", "random_batch", "wrapped_step"]

LR = 0.01
Batch = tuple[Tensor, Tensor]
Step = Callable[[], object]


def random_batch(size: int, seed: int = 0) -> Batch:
    """Images and labels as of Fashion-MNIST."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(size, 1, 28, 28, generator=generator)
    return inputs, torch.randint(10, (size,), generator=generator)


def plain_step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer | None = None) -> Step:
    """As in any PyTorch loop; with SGD, unless said otherwise."""
    inputs, targets = batch
    stepped = torch.optim.SGD(model.parameters(), lr=LR) if optimizer is None else optimizer

    def step() -> None:
        stepped.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        stepped.step()

    return step


def wrapped_step(model: nn.Module, batch: Batch) -> Step:
    """Of a model in gradtide.DataParallel."""
    inputs, targets = batch

    def step() -> None:
        functional.cross_entropy(model(inputs), targets).backward()
        model.step()  # type: ignore[operator]

    return step
