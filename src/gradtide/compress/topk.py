"""topk: the largest values and where they are. What is left out is sent later (deep gradient compression).

The k-th largest is found by its bits, eleven at a time from the top: one pass counts, and the few that share the bits
of the k-th go on to the next. Nothing is sorted. Of equal ones the first count.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of
from gradtide.errors import ConfigError

__all__ = ["TopK"]

_DIGIT = 11  # bits
_LANES = 32  # values looked at at once: most have none of the largest among them


def _select(element: Element) -> Any:
    U, mask = element.bits, element.bits((1 << (element.width - 1)) - 1)
    width = element.width - 1

    def select(values: Any, bits: Any, chosen: Any, places: Any) -> Any:
        k, count = chosen.shape[0], values.shape[0]
        shift = width - _DIGIT
        top, whole = U(shift), count // _LANES * _LANES
        bins = np.zeros((4, 1 << _DIGIT), np.uint32)  # in turns: one that is raised twice in a row has to wait
        first, second, third, fourth = bins[0], bins[1], bins[2], bins[3]
        for begin in range(0, whole, _LANES):
            some = bits[begin : begin + _LANES]
            for i in range(0, _LANES, 4):
                first[U(some[i] & mask) >> top] += np.uint32(1)
                second[U(some[i + 1] & mask) >> top] += np.uint32(1)
                third[U(some[i + 2] & mask) >> top] += np.uint32(1)
                fourth[U(some[i + 3] & mask) >> top] += np.uint32(1)
        for i in range(whole, count):
            first[U(bits[i] & mask) >> top] += np.uint32(1)
        counts = np.zeros(1 << _DIGIT, np.int64)
        for digit in range(1 << _DIGIT):
            counts[digit] = np.int64(first[digit]) + second[digit] + third[digit] + fourth[digit]
        left, digit = k, (1 << _DIGIT) - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        alike = np.empty(counts[digit], U)
        found, wanted = 0, U(digit)
        least = U(wanted << top)
        for begin in range(0, count, _LANES):
            some = bits[begin : min(begin + _LANES, count)]
            largest = U(0)
            for i in range(some.shape[0]):
                largest = max(largest, U(some[i] & mask))
            if largest < least:
                continue
            for i in range(some.shape[0]):
                size = U(some[i] & mask)
                if U(size >> top) == wanted:
                    alike[found] = size
                    found += 1
        kth = U(wanted << top)
        while shift > 0:
            step = min(_DIGIT, shift)
            shift -= step
            low, inside = U(shift), U((1 << step) - 1)
            counts[:] = 0
            for i in range(found):
                counts[U(alike[i] >> low) & inside] += 1
            digit = (1 << step) - 1
            while counts[digit] < left:
                left -= counts[digit]
                digit -= 1
            wanted, kept = U(digit), 0
            for i in range(found):
                if U(U(alike[i] >> low) & inside) == wanted:
                    alike[kept] = alike[i]
                    kept += 1
            found = kept
            kth = U(kth | U(wanted << low))
        # `left` of those that are as large as the k-th, and all that are larger.
        at = 0
        for begin in range(0, count, _LANES):
            some = bits[begin : min(begin + _LANES, count)]
            largest = U(0)
            for i in range(some.shape[0]):
                largest = max(largest, U(some[i] & mask))
            if largest < kth:
                continue
            for i in range(some.shape[0]):
                size = U(some[i] & mask)
                if size < kth or (size == kth and left == 0):
                    continue
                left -= size == kth
                chosen[at] = values[begin + i]
                places[at] = np.uint32(begin + i)
                values[begin + i] = 0
                at += 1

    return select


def _scatter(element: Element) -> Any:
    def scatter(chosen: Any, places: Any, out: Any, add: Any) -> Any:
        if not add:
            out[:] = 0
        for i in range(chosen.shape[0]):
            out[places[i]] += chosen[i]

    return scatter


_SELECT, _SCATTER = CodecKernel(_select), CodecKernel(_scatter)


@codec
@dataclass(frozen=True, slots=True)
class TopK:
    """One in a hundred, unless said."""

    ratio: float = 0.01
    name: ClassVar[str] = "topk"
    tag: ClassVar[str] = "topk"
    number: ClassVar[int] = 5
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"compress: topk of {self.ratio:g} makes no sense; give a share above 0, at most 1")

    def kept(self, form: Form) -> int:
        return min(form.count, max(1, math.ceil(self.ratio * form.count)))

    def body_bytes(self, form: Form) -> int:
        return self.kept(form) * (form.dtype.itemsize + 4)

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        _SELECT(form.dtype, values, values.view(element_of(form.dtype).bits), *self._parts(body, form))
        return True

    def check(self, body: Array, form: Form) -> None:
        chosen, places = self._parts(body, form)
        if len(places) and int(places.max()) >= form.count:
            refuse(f"a place beyond the {form.count} values")
        if (places[1:] <= places[:-1]).any():
            refuse("places are not in order, or twice there")
        if not np.isfinite(chosen).all():
            refuse("a value is not finite")

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        _SCATTER(form.dtype, *self._parts(body, form), out, add)

    def _parts(self, body: Array, form: Form) -> tuple[Array, Array]:
        at = self.kept(form) * form.dtype.itemsize
        return body[:at].view(form.dtype), body[at:].view(np.uint32)
