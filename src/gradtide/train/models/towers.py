"""AlexNet as Krizhevsky, Sutskever and Hinton trained it in 2012 on two GPUs: two towers that meet three times."""

from collections import OrderedDict
from typing import Literal

from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.layers.response_norm import GroupedResponseNorm

__all__ = ["alexnet"]

TOWERS = 2


def alexnet(
    *,
    width: float = 1.0,
    classes: int = 1000,
    size: int = 227,
    channels: int = 3,
    lrn: Literal["tower", "across"] = "tower",
    enlarge: bool = False,
) -> nn.Sequential:
    """60,965,224 parameters for 227x227 images in three colours and 1,000 classes.

    `width` is a share of the original's channels and units; `size` is of the images, each way; `lrn` says whether a
    channel's response is normalised by neighbours of its own tower, or of both. `enlarge`: smaller images are scaled.
    """
    if lrn not in ("tower", "across"):
        raise ConfigError(f"lrn={lrn!r}; choose tower (neighbours of a channel's own tower) or across")
    side = _side_after_pools(size)
    if side < 1:
        raise ConfigError(f"AlexNet's layers leave nothing of {size}x{size} images; they need 67x67 or more")
    one, two, three, four, five, dense = (_scaled(units, width) for units in (96, 256, 384, 384, 256, 4096))
    layers: OrderedDict[str, nn.Module] = OrderedDict(enlarge=nn.Upsample(size=size)) if enlarge else OrderedDict()
    layers |= {
        "conv1": nn.Conv2d(channels, one, kernel_size=11, stride=4),
        "relu1": nn.ReLU(),
        "norm1": _response_norm(lrn),
        "pool1": nn.MaxPool2d(3, stride=2),
        "conv2": nn.Conv2d(one, two, kernel_size=5, padding=2, groups=TOWERS),
        "relu2": nn.ReLU(),
        "norm2": _response_norm(lrn),
        "pool2": nn.MaxPool2d(3, stride=2),
        "conv3": nn.Conv2d(two, three, kernel_size=3, padding=1),  # reads both towers, as the dense layers do
        "relu3": nn.ReLU(),
        "conv4": nn.Conv2d(three, four, kernel_size=3, padding=1, groups=TOWERS),
        "relu4": nn.ReLU(),
        "conv5": nn.Conv2d(four, five, kernel_size=3, padding=1, groups=TOWERS),
        "relu5": nn.ReLU(),
        "pool5": nn.MaxPool2d(3, stride=2),
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(five * side * side, dense),
        "relu6": nn.ReLU(),
        "drop6": nn.Dropout(0.5),
        "fc7": nn.Linear(dense, dense),
        "relu7": nn.ReLU(),
        "drop7": nn.Dropout(0.5),
        "fc8": nn.Linear(dense, classes),
    }
    return nn.Sequential(layers)


def _response_norm(lrn: str) -> nn.Module:
    # The paper's alpha of 1e-4 multiplies the sum over 5 channels; torch's multiplies their mean.
    if lrn == "tower":
        return GroupedResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0, groups=TOWERS)
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


def _scaled(units: int, width: float) -> int:
    """As many in each tower."""
    scaled = TOWERS * round(units * width / TOWERS)
    if scaled < TOWERS:
        raise ConfigError(f"width={width} leaves nothing of a layer with {units} units; take a larger share")
    return scaled


def _side_after_pools(size: int) -> int:
    """Of what the last convolution's pool leaves of an image."""
    after_conv1 = (size - 11) // 4 + 1
    pooled = after_conv1
    for _ in range(3):
        pooled = (pooled - 3) // 2 + 1
    return pooled
