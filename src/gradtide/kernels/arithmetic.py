"""What a reduction does with a block of elements: one small function for each type and reduction, without fastmath.

uint16 stands for bfloat16, which numba does not know: it is widened, and rounded after each operation, as in torch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import overload, register_jitable

from gradtide.kernels.atomics import bits_of_float, float_of_bits, pointer
from gradtide.kernels.words import Op

__all__ = ["write_block"]


def _widen(value: Any) -> Any: ...


def _narrow(value: Any, like: Any) -> Any: ...


@overload(_widen, strict=False)
def _widen_overload(value: Any) -> Any:
    if value == types.uint16:
        return lambda value: float_of_bits(np.uint32(np.uint32(value) << np.uint32(16)))
    return lambda value: value


@overload(_narrow, strict=False)
def _narrow_overload(value: Any, like: Any) -> Any:
    if like != types.uint16:
        return lambda value, like: value

    def round_to_even(value: Any, like: Any) -> Any:
        wide = np.float32(value)
        bits = bits_of_float(wide)
        rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.uint16(0x7FC0) if wide != wide else np.uint16(rounded)

    return round_to_even


@register_jitable
def _sum(a: Any, b: Any, divisor: Any) -> Any:
    return _narrow(_widen(a) + _widen(b), a)


@register_jitable
def _mean(a: Any, b: Any, divisor: Any) -> Any:
    """The last addition of a mean, and its division: two roundings, as torch does it."""
    return _narrow(_widen(_narrow(_widen(a) + _widen(b), a)) / divisor, a)


@register_jitable
def _product(a: Any, b: Any, divisor: Any) -> Any:
    return _narrow(_widen(a) * _widen(b), a)


@register_jitable
def _min(a: Any, b: Any, divisor: Any) -> Any:
    left, right = _widen(a), _widen(b)
    return a if left < right or left != left else b  # NaN wins, as in torch


@register_jitable
def _max(a: Any, b: Any, divisor: Any) -> Any:
    left, right = _widen(a), _widen(b)
    return a if left > right or left != left else b


@register_jitable
def _band(a: Any, b: Any, divisor: Any) -> Any:
    return a & b


@register_jitable
def _bor(a: Any, b: Any, divisor: Any) -> Any:
    return a | b


@register_jitable
def _bxor(a: Any, b: Any, divisor: Any) -> Any:
    return a ^ b


_COMPUTE: dict[int, Callable[[Any, Any, Any], Any]] = {
    Op.SUM: _sum,
    Op.MEAN: _mean,
    Op.MIN: _min,
    Op.MAX: _max,
    Op.PRODUCT: _product,
    Op.BAND: _band,
    Op.BOR: _bor,
    Op.BXOR: _bxor,
}


def write_block(name: str, op: int) -> Callable[..., None]:
    """The function for elements of the numba type of this name, still to be compiled.

    It computes target = left op right; if `also` is given, target is left and the result goes to right as well. Nothing
    may overlap in another way. LLVM's vector code asks whether arrays overlap and goes one by one if they do; of one
    array it need not ask, so the cases in which two are the same have loops of their own.
    """
    element: Any = getattr(types, name)
    compute, wide = _COMPUTE[op], types.float64 if element == types.float64 else types.float32

    def block(target: Any, left: Any, right: Any, also: Any, count: Any, divisor: Any) -> None:
        zero, by = element(0), wide(divisor)
        a, b = carray(pointer(left, zero), count), carray(pointer(right, zero), count)
        if also:
            for i in range(count):
                value = compute(a[i], b[i], by)
                a[i] = value
                b[i] = value
        elif target == left:
            for i in range(count):
                a[i] = compute(a[i], b[i], by)
        elif target == right:
            for i in range(count):
                b[i] = compute(a[i], b[i], by)
        else:
            out = carray(pointer(target, zero), count)
            for i in range(count):
                out[i] = compute(a[i], b[i], by)

    return block
