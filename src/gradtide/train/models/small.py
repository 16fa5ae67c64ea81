"""LeNet and MLPs, as in the textbook."""

from itertools import pairwise

from torch import nn

__all__ = ["deep", "lenet", "mlp"]


def lenet() -> nn.Module:
    """The LeNet of the multi-GPU chapter: 129,068 parameters for 28x28 grey images in ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 20, kernel_size=3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, kernel_size=5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def mlp() -> nn.Module:
    """784-4096-4096-10: 20 million parameters, for when gradients are large."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )


def deep() -> nn.Module:
    """784-1024-...-1024-10, sixteen hidden layers alike: 17 million parameters whose gradients come one by one."""
    widths = [784, *[1024] * 16]
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(1024, 10))
