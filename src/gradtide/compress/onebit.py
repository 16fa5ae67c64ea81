"""onebit: the sign of each value, and a scale for each block. What is left out is sent later (1-bit SGD, EF-signSGD).

A scale is the block's mean size, rounded to a power of two, between 2/3 and 4/3 of it: that keeps 8/9 of what the mean
would, and what is left is exact, not rounded, as long as the digits suffice. A block of zeros has the scale 0.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of

__all__ = ["OneBit"]

BLOCK = 4096  # values that have a scale in common
_WORD = 32


def _sign(element: Element) -> Any:
    F, top = element.number, element.bits(element.width - 1)
    U32 = np.uint32

    def sign(values: Any, bits: Any, scales: Any, words: Any) -> Any:
        sums = np.empty(BLOCK // _WORD)
        for b in range(scales.shape[0]):
            begin = b * BLOCK
            end = min(begin + BLOCK, values.shape[0])
            block, raw, count = values[begin:end], bits[begin:end], end - begin
            share = 1.0 / count  # before they are added: the sum of the largest numbers would be infinite
            length = (count + _WORD - 1) // _WORD
            place = begin // _WORD
            word, lane = words[place : place + length], sums[:length]
            for w in range(length):
                word[w] = U32(0)
                lane[w] = 0.0
            for j in range(_WORD):  # side by side, which the compiler makes vectors of
                row = block[j * length : min(j * length + length, count)]
                for w in range(row.shape[0]):
                    lane[w] += abs(float(row[w])) * share
            mean = 0.0
            for w in range(length):
                mean += lane[w]
            power = 0.0
            if mean > 0.0:
                fraction, exponent = math.frexp(mean)  # mean = fraction * 2 ** exponent, fraction in [1/2, 1)
                power = math.ldexp(1.0 if fraction >= 0.75 else 0.5, exponent)
            scale = F(power)
            if not np.isfinite(scale):
                scale = F(math.ldexp(0.5, exponent))
            scales[b] = scale
            for j in range(_WORD):  # bit j of the words: the j-th row of so many values
                first, shift = j * length, U32(j)
                last = min(first + length, count)
                row, signs = block[first:last], raw[first:last]
                for w in range(row.shape[0]):
                    word[w] |= U32(U32(signs[w] >> top) << shift)
                for w in range(row.shape[0]):
                    row[w] = F(row[w] - F(np.copysign(scale, row[w])))

    return sign


def _unsign(element: Element) -> Any:
    U32 = np.uint32

    def unsign(scales: Any, words: Any, out: Any, add: Any) -> Any:
        for b in range(scales.shape[0]):
            begin = b * BLOCK
            end = min(begin + BLOCK, out.shape[0])
            block, count, scale = out[begin:end], end - begin, scales[b]
            length = (count + _WORD - 1) // _WORD
            word = words[begin // _WORD : begin // _WORD + length]
            for j in range(_WORD):
                first = j * length
                row = block[first : min(first + length, count)]
                bit = U32(U32(1) << U32(j))
                if add:
                    for w in range(row.shape[0]):
                        row[w] += scale if U32(word[w] & bit) == U32(0) else -scale
                else:
                    for w in range(row.shape[0]):
                        row[w] = scale if U32(word[w] & bit) == U32(0) else -scale

    return unsign


_SIGN, _UNSIGN = CodecKernel(_sign), CodecKernel(_unsign)


@codec
@dataclass(frozen=True, slots=True)
class OneBit:
    """A thirty-second of float32."""

    name: ClassVar[str] = "onebit"
    tag: ClassVar[str] = "onebit"
    number: ClassVar[int] = 4
    feedback: ClassVar[bool] = True

    def kept(self, form: Form) -> int:
        return form.count

    def body_bytes(self, form: Form) -> int:
        return _blocks(form) * form.dtype.itemsize + 4 * _words(form)

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        scales, words = _parts(body, form)
        _SIGN(form.dtype, values, values.view(element_of(form.dtype).bits), scales, words)
        return True

    def check(self, body: Array, form: Form) -> None:
        scales, _ = _parts(body, form)
        if not np.isfinite(scales).all() or (scales < 0).any():
            refuse("a scale is not finite, or below 0")

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        _UNSIGN(form.dtype, *_parts(body, form), out, add)


def _blocks(form: Form) -> int:
    return -(-form.count // BLOCK)


def _words(form: Form) -> int:
    return -(-form.count // _WORD)


def _parts(body: Array, form: Form) -> tuple[Array, Array]:
    at = _blocks(form) * form.dtype.itemsize
    return body[:at].view(form.dtype), body[at:].view(np.uint32)
