"""int8: a scale for each block, and a byte for each value, rounded up or down by lot so that it is right on average."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of
from gradtide.compress.half import BLOCK, restore

__all__ = ["Int8"]

_MOST = 127


def _quantise(element: Element) -> Any:
    U, F, mask = element.bits, element.number, element.bits((1 << (element.width - 1)) - 1)
    smallest, most = element.number(element.smallest), element.number(_MOST)
    half, unit = element.number(0.5), element.number(2.0**-23)
    one, zero = element.number(1), element.number(0)
    U32 = np.uint32
    spread, mix_a, mix_b = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)

    def quantise(values: Any, bits: Any, scales: Any, scale_bits: Any, out: Any, first: Any, second: Any) -> Any:
        for b in range(scales.shape[0]):
            begin = b * BLOCK
            end = min(begin + BLOCK, values.shape[0])
            raw, block, target = bits[begin:end], values[begin:end], out[begin:end]
            top = U(0)
            for i in range(raw.shape[0]):
                top = max(top, U(raw[i] & mask))
            if top == U(0):
                scales[b] = zero
                for i in range(target.shape[0]):
                    target[i] = 0
                continue
            scale_bits[b] = top
            scale = F(max(F(scales[b] / most), smallest))
            if not np.isfinite(F(scale * most)):  # the largest number of all must not become infinite
                scale_bits[b] = U(0)
                scales[b] = scale
                scale_bits[b] = U(scale_bits[b] - U(1))
                scale = scales[b]
            scales[b] = scale
            inverse = F(one / scale)
            start = U32(U32(U32(begin) * spread) + first)
            for i in range(block.shape[0]):
                # A counter, mixed ("lowbias32"): the same lot for the same place and draw, on whatever machine.
                h = U32(start + U32(U32(i) * spread))
                h = U32(h ^ U32(h >> U32(16)))
                h = U32(h * mix_a)
                h = U32(U32(h ^ U32(h >> U32(15))) + second)
                h = U32(h * mix_b)
                h = U32(h ^ U32(h >> U32(16)))
                # Between 0 and 1, and never 1, to which one digit more would be rounded up: 0 stays 0.
                lot = F(F(F(np.int32(h >> U32(9))) + half) * unit)
                value = F(np.floor(F(F(block[i] * inverse) + lot)))
                value = value if value < most else most
                value = value if value > -most else -most
                target[i] = np.int8(np.int32(value))

    return quantise


def _restore(element: Element) -> Any:
    """A kernel of its own: its cache is its own, too."""
    return restore(element)


_QUANTISE, _RESTORE = CodecKernel(_quantise), CodecKernel(_restore)


@codec
@dataclass(frozen=True, slots=True)
class Int8:
    """Unbiased, so that nothing has to be sent later."""

    name: ClassVar[str] = "int8"
    tag: ClassVar[str] = "int8"
    number: ClassVar[int] = 3
    feedback: ClassVar[bool] = False

    def kept(self, form: Form) -> int:
        return form.count

    def body_bytes(self, form: Form) -> int:
        return _blocks(form) * form.dtype.itemsize + form.count

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        bits, first, second = element_of(form.dtype).bits, draw & 0xFFFFFFFF, draw >> 32 & 0xFFFFFFFF
        scales, quantised = _parts(body, form)
        lots = np.uint32(first), np.uint32(second)
        _QUANTISE(form.dtype, values, values.view(bits), scales, scales.view(bits), quantised, *lots)
        return True

    def check(self, body: Array, form: Form) -> None:
        scales, quantised = _parts(body, form)
        with np.errstate(over="ignore"):
            if not np.isfinite(scales * _MOST).all() or (scales < 0).any():
                refuse("a scale is not finite, or below 0")
        if form.count and int(quantised.min()) < -_MOST:
            refuse(f"a value is below -{_MOST}")

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        _RESTORE(form.dtype, *_parts(body, form), out, add)


def _blocks(form: Form) -> int:
    return -(-form.count // BLOCK)


def _parts(body: Array, form: Form) -> tuple[Array, Array]:
    at = _blocks(form) * form.dtype.itemsize
    return body[:at].view(form.dtype), body[at:].view(np.int8)
