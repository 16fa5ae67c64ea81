"""Dropout whose mask depends on nothing but the seed, the step, the layer, the sample and the unit.

So it is the same under every layout: for any micro-batches, copies and shards, and when activations are computed again.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.kernels.masks import GOLDEN, MIX_ONE, MIX_TWO, fill_mask

__all__ = ["CHANNELWISE", "DROPOUTS", "DropoutPlace", "SeededDropout", "keep_mask", "mask_key"]

CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
DROPOUTS = (nn.Dropout, *CHANNELWISE)  # what SeededDropout takes the place of; a class derived of one is another thing


@dataclass(slots=True)
class DropoutPlace:
    """Which samples of which step a device computes now: its runner says so before it runs a segment, also if again."""

    seed: int = 0
    step: int = -1
    first: int = 0  # the number, in the whole batch, of the first sample
    samples: int = -1
    calls: dict[str, int] = field(default_factory=dict)  # of each layer, since then

    def at(self, step: int, first: int, samples: int, seed: int | None = None) -> None:
        self.step, self.first, self.samples = step, first, samples
        self.seed = self.seed if seed is None else seed
        self.calls.clear()

    def call(self, layer: str) -> int:
        """How often the layer was called before: a block may call one twice."""
        number = self.calls.get(layer, 0)
        self.calls[layer] = number + 1
        return number


class MaskSpan(NamedTuple):
    """Where the elements of a sample that are here lie in all of it: `own` of `total` from `offset` on, in a dimension
    with `outer` elements before it and `inner` behind it."""

    outer: int
    own: int
    inner: int
    total: int
    offset: int


class SeededDropout(nn.Module):
    """In place of nn.Dropout, or (`channelwise`) of Dropout1d, 2d, 3d, on a value that is whole or a slice.

    `dim`, `total` and `offset` say where in the whole value the slice lies.
    """

    def __init__(self, layer: str, p: float, place: DropoutPlace, channelwise: bool = False) -> None:
        super().__init__()
        self.layer, self.p, self.place, self.channelwise = layer, p, place, channelwise
        self.dim, self.total, self.offset = 1, -1, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        self._check(x)
        place = self.place
        key = mask_key(place.seed, place.step, self.layer, place.call(self.layer))
        shape = x.shape[:2] if self.channelwise else x.shape
        mask = keep_mask(x.device, shape[0], self._span(shape), key, place.first, self.p)
        mask = mask.view(*shape, *[1] * (x.dim() - len(shape)))
        return x * mask * (1 / (1 - self.p) if self.p < 1 else 0.0)

    def _check(self, x: torch.Tensor) -> None:
        assert self.place.step >= 0, "nobody has said which step and samples these are"
        if x.shape[0] != self.place.samples or (self.channelwise and x.dim() < 3):
            raise ConfigError(
                f"dropout layer {self.layer} reads {tuple(x.shape)} for {self.place.samples} samples; "
                "the first dimension has to be the samples (for Dropout1d, 2d and 3d the next one the channels)"
            )

    def _span(self, shape: torch.Size) -> MaskSpan:
        if self.total < 0:
            size = math.prod(shape[1:])
            return MaskSpan(1, size, 1, size, 0)
        dim = self.dim % len(shape)
        return MaskSpan(math.prod(shape[1:dim]), shape[dim], math.prod(shape[dim + 1 :]), self.total, self.offset)

    def extra_repr(self) -> str:
        return f"{self.layer}, p={self.p}"


def mask_key(seed: int, step: int, layer: str, call: int = 0) -> int:
    """64 bits for all that a mask has in common."""
    text = f"{seed} {step} {call} {layer}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def keep_mask(device: torch.device, rows: int, span: MaskSpan, key: int, first: int, p: float) -> torch.Tensor:
    """True for what is kept, of samples first to first + rows - 1. The same bits on every device."""
    threshold = math.ceil(p * 2**53)
    if device.type != "cpu":
        return _keep_by_torch(device, rows, span, key, first, threshold)
    mask = torch.empty(rows * span.outer * span.own * span.inner, dtype=torch.bool)
    outer, own, inner, total, offset = span
    fill_mask()(mask.numpy(), rows, outer, own, inner, total, offset, key, first, threshold)
    return mask


def _keep_by_torch(
    device: torch.device, rows: int, span: MaskSpan, key: int, first: int, threshold: int
) -> torch.Tensor:
    """The kernel's arithmetic in torch's operations: 64-bit integers that wrap around."""
    samples = torch.arange(first + 1, first + rows + 1, device=device)
    outer = torch.arange(span.outer, device=device) * span.total + span.offset
    units = outer[:, None] * span.inner + torch.arange(1, span.own * span.inner + 1, device=device)
    starts = _mixed(samples * _signed(GOLDEN) + _signed(key))
    words = _mixed(starts[:, None] + units.reshape(1, -1) * _signed(GOLDEN))
    return (_shifted(words, 11) >= threshold).reshape(-1)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    words = (words ^ _shifted(words, 30)) * _signed(MIX_ONE)
    words = (words ^ _shifted(words, 27)) * _signed(MIX_TWO)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
