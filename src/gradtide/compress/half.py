"""fp16 and bf16: half the bits, rounded to the nearest.

fp16 has a range of its own, from 6e-8 to 65,504, in which gradients may not lie. So each block has a scale: a power of
two, which changes no digit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of

__all__ = ["BLOCK", "BrainFloat", "HalfFloat", "ScaledHalf", "restore"]

BLOCK = 1024  # values that have a scale in common, here and with int8
_PIECE = 1 << 15  # elements: what is clamped is still in the cache when it is rounded
_SCALED_PIECE = 1 << 18  # the same for what is scaled: fewer calls of two kernels each
_INFINITE, _MOST = 0x7C00, np.float32(65504)  # of halves: the bits of infinity, and the largest there is
_TOP = 14  # the largest of a block is scaled to between 2**14 and 2**15: rounded up it is still a half


class _Half:
    """As the bits are, without scales."""

    kind: ClassVar[torch.dtype]
    infinite: ClassVar[int]
    feedback: ClassVar[bool] = False

    def kept(self, form: Form) -> int:
        return form.count

    def body_bytes(self, form: Form) -> int:
        return 2 * form.count

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        most, source, target = torch.finfo(self.kind).max, torch.from_numpy(values), self._halves(body)
        for piece, half in zip(source.split(_PIECE), target.split(_PIECE), strict=True):
            half.copy_(piece.clamp(-most, most))
        return True

    def check(self, body: Array, form: Form) -> None:
        _check_finite(body.view(np.uint16), self.infinite)

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        target, halves = torch.from_numpy(out), self._halves(body)
        if not add:
            target.copy_(halves)
            return
        for piece, half in zip(target.split(_PIECE), halves.split(_PIECE), strict=True):
            piece.add_(half.to(piece.dtype))  # in one operation, torch converts slowly

    def _halves(self, body: Array) -> Any:
        return torch.from_numpy(body).view(self.kind)


def _largest_half(_element: Element) -> Any:
    mask = np.uint16(0x7FFF)

    def largest(bits: Any) -> Any:
        top = np.uint16(0)
        for i in range(bits.shape[0]):
            top = max(top, np.uint16(bits[i] & mask))
        return top

    return largest


_LARGEST = CodecKernel(_largest_half)


def _check_finite(bits: Array, infinite: int) -> None:
    if int(_LARGEST(np.float32, bits)) >= infinite:
        refuse("a value is not finite")


@codec
@dataclass(frozen=True, slots=True)
class HalfFloat(_Half):
    """Eleven digits, from 6e-8 to 65,504; what is smaller is lost, and what is larger becomes that. As 0.2 had it: keys
    of its checkpoints are still encoded so."""

    name: ClassVar[str] = "fp16"
    tag: ClassVar[str] = "fp16"
    number: ClassVar[int] = 1
    kind: ClassVar[torch.dtype] = torch.float16
    infinite: ClassVar[int] = _INFINITE


@codec
@dataclass(frozen=True, slots=True)
class BrainFloat(_Half):
    """Eight digits, and the range of float32; what is too large becomes the largest there is."""

    name: ClassVar[str] = "bf16"
    tag: ClassVar[str] = "bf16"
    number: ClassVar[int] = 2
    kind: ClassVar[torch.dtype] = torch.bfloat16
    infinite: ClassVar[int] = 0x7F80


def _scale(element: Element) -> Any:
    U, F, mask = element.bits, np.float32, element.bits((1 << (element.width - 1)) - 1)
    digits, zero = 23 if element.width == 32 else 52, element.number(0)
    infinite = element.infinite >> digits
    place, least, top_power, largest = U(digits), U(1), U(_TOP), U(infinite - 1 - _TOP - 1)
    opposites = U(2 * (infinite // 2))  # of a power's bits and its inverse's, the sum
    most = F(_MOST)

    def scale(values: Any, bits: Any, scales: Any, scale_bits: Any, out: Any) -> Any:
        for b in range(scales.shape[0]):
            begin = b * BLOCK
            end = min(begin + BLOCK, values.shape[0])
            raw, block, target = bits[begin:end], values[begin:end], out[begin:end]
            top = U(0)
            for i in range(raw.shape[0]):
                top = max(top, U(raw[i] & mask))
            power = U(top >> place)
            power = U(power - top_power) if power > top_power else least
            power = min(power, largest)  # what is nearly infinite must not become it, rounded up
            scale_bits[b] = U(U(opposites - power) << place)
            inverse = scales[b]
            scale_bits[b] = U(power << place)
            if top == U(0):
                scales[b] = zero
            for i in range(block.shape[0]):
                value = F(block[i] * inverse)
                value = value if value < most else most
                target[i] = value if value > -most else -most

    return scale


def restore(element: Element) -> Any:
    """What of each block is multiplied by its scale."""
    F = element.number

    def restored(scales: Any, quantised: Any, out: Any, add: Any) -> Any:
        for b in range(scales.shape[0]):
            begin = b * BLOCK
            end = min(begin + BLOCK, out.shape[0])
            source, target, scale = quantised[begin:end], out[begin:end], scales[b]
            if add:
                for i in range(target.shape[0]):
                    target[i] += F(scale * F(source[i]))
            else:
                for i in range(target.shape[0]):
                    target[i] = F(scale * F(source[i]))

    return restored


_SCALE, _RESTORE = CodecKernel(_scale), CodecKernel(restore)


@codec
@dataclass(frozen=True, slots=True)
class ScaledHalf:
    """Eleven digits, from the largest of a block to a 3e8th of it; fewer down to a 5e11th, and what is smaller is lost.

    The scales come first, then the halves."""

    name: ClassVar[str] = "fp16"
    tag: ClassVar[str] = "scaled_fp16"
    number: ClassVar[int] = 7
    feedback: ClassVar[bool] = False

    def kept(self, form: Form) -> int:
        return form.count

    def body_bytes(self, form: Form) -> int:
        return _blocks(form) * form.dtype.itemsize + 2 * form.count

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        bits, room = element_of(form.dtype).bits, _room(form)
        for scales, halves, piece in _pieces(body, form, values):
            _SCALE(form.dtype, piece, piece.view(bits), scales, scales.view(bits), room.numpy())
            halves.copy_(room[: len(piece)])
        return True

    def check(self, body: Array, form: Form) -> None:
        scales, halves = _parts(body, form)
        with np.errstate(over="ignore"):
            if not np.isfinite(scales * _MOST).all() or (scales < 0).any():
                refuse("a scale is not finite, or below 0")
        _check_finite(halves, _INFINITE)

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        room = _room(form)
        for scales, halves, piece in _pieces(body, form, out):
            room[: len(piece)].copy_(halves)
            _RESTORE(form.dtype, scales, room.numpy(), piece, add)


def _blocks(form: Form) -> int:
    return -(-form.count // BLOCK)


def _parts(body: Array, form: Form) -> tuple[Array, Array]:
    at = _blocks(form) * form.dtype.itemsize
    return body[:at].view(form.dtype), body[at:].view(np.uint16)


def _room(form: Form) -> torch.Tensor:
    """For one piece, scaled: torch rounds from float32 fastest."""
    return torch.empty(min(form.count, _SCALED_PIECE))


def _pieces(body: Array, form: Form, values: Array) -> Iterator[tuple[Array, torch.Tensor, Array]]:
    """Scales, halves and values of each."""
    scales, bits = _parts(body, form)
    halves = torch.from_numpy(bits).view(torch.float16)
    for begin in range(0, form.count, _SCALED_PIECE):
        end = begin + _SCALED_PIECE
        yield scales[begin // BLOCK : end // BLOCK], halves[begin:end], values[begin:end]
