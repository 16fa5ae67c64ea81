"""What every codec must do: one contract, run on each of them.

`check_codec(codec, dtype)`: on gradients of all kinds that codec gives back what it should, keeps what it left out,
says the same twice, and takes nothing from a stranger that it should not.
"""

from collections.abc import Callable, Iterator

import numpy as np

from gradtide.compress import Codec, Form, PayloadKind, pack, payload_bytes, read, unpack
from gradtide.compress.compiled import Array
from gradtide.errors import DataError

__all__ = ["check_codec", "gradients"]

_SIZES = (1, 2, 7, 31, 33, 1023, 1025, 4099)


def check_codec(codec: Codec, dtype: type) -> None:
    """Everything below, in turn."""
    for values in gradients(dtype):
        form = Form(len(values), values.dtype, _rows(len(values)))
        _gives_back(codec, values, form)
        _refuses_strangers(codec, values, form)
    _what_is_not_finite_goes_as_it_is(codec, dtype)


def gradients(dtype: type) -> Iterator[Array]:
    """Of odd sizes: zeros, whole numbers, spread out ones, the smallest and the largest there are."""
    dice, limits = np.random.default_rng(7), np.finfo(dtype)
    for size in _SIZES:
        yield np.zeros(size, dtype)
        yield dice.integers(-9, 10, size).astype(dtype)
        yield (dice.standard_normal(size) * np.exp(3 * dice.standard_normal(size))).astype(dtype)
        yield (dice.integers(-3, 4, size) * limits.smallest_subnormal).astype(dtype)
        yield (dice.choice([-1.0, 0.0, 0.5, 1.0], size) * float(limits.max)).astype(dtype)


def _rows(count: int) -> int:
    """Of a matrix with so many elements; 1 if there is none."""
    return next((rows for rows in range(int(count**0.5), 1, -1) if count % rows == 0), 1)


def _gives_back(codec: Codec, values: Array, form: Form) -> None:
    left, again = values.copy(), values.copy()
    payload = pack(codec, left, form, draw=11)
    if read(codec, payload, form) is PayloadKind.DENSE:
        assert np.abs(values).max() > np.finfo(values.dtype).max / (8 * len(values)), "what is not huge is encoded"
        assert np.array_equal(left, values)
        return
    assert len(payload) == payload_bytes(codec, form), "how long it is depends on the form alone"
    assert np.array_equal(payload, pack(codec, again, form, draw=11)), "the same again gives the same bytes"
    assert np.array_equal(left, again)
    out = np.full_like(values, 3)
    assert unpack(codec, payload, form, out) is PayloadKind.CODED
    assert np.isfinite(out).all()
    assert values.any() or not out.any(), "zeros give zeros"
    _check_added(codec, payload, form, out)
    if codec.feedback:
        assert np.isfinite(left).all()
        off = np.abs(out.astype(np.longdouble) + left - values)
        assert off.max() <= 4 * np.finfo(values.dtype).eps * np.abs(values).max(), "nothing is lost"
    else:
        assert np.array_equal(left, values), "nothing is left for later"


def _check_added(codec: Codec, payload: Array, form: Form, out: Array) -> None:
    base = np.arange(form.count, dtype=form.dtype)
    total = base.copy()
    unpack(codec, payload, form, total, add=True)
    assert np.allclose(total, base + out, rtol=1e-5, atol=0)


def _refuses_strangers(codec: Codec, values: Array, form: Form) -> None:
    payload, out = pack(codec, values.copy(), form, draw=1), np.empty_like(values)
    unpack(codec, np.frombuffer(payload.tobytes(), np.uint8), form, out)  # of whatever memory
    odd = np.zeros(len(payload) + 1, np.uint8)[1:]
    odd[:] = payload
    unpack(codec, odd, form, out)
    _refused(lambda: read(codec, payload[:-1], form))
    _refused(lambda: read(codec, payload[:5], form))
    _refused(lambda: read(codec, np.concatenate([payload, payload]), form))
    for place in (0, 1, 2, 3, 8, 15):
        other = payload.copy()
        other[place] ^= 0x55
        _refused(lambda: read(codec, other, form))  # noqa: B023
    dice = np.random.default_rng(form.count)
    for _ in range(8):  # whatever it says: refused, or finite
        other = payload.copy()
        other[16 + dice.integers(0, len(payload) - 16, 3)] = dice.integers(0, 256, 3)
        try:
            unpack(codec, other, form, out)
        except DataError:
            continue
        assert np.isfinite(out).all() or codec.name == "powersgd"  # whose products may be too large


def _refused(work: Callable[[], object]) -> None:
    try:
        work()
    except DataError as error:
        text = str(error)
    else:
        text = ""
    assert text, "a payload that makes no sense was taken"
    assert "\n" not in text


def _what_is_not_finite_goes_as_it_is(codec: Codec, dtype: type) -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        values: Array = np.arange(12, dtype=dtype)
        values[7] = wrong
        left, out, form = values.copy(), np.empty_like(values), Form(12, values.dtype, 3)
        assert unpack(codec, pack(codec, left, form, draw=0), form, out) is PayloadKind.DENSE
        assert np.array_equal(out, values, equal_nan=True)
        assert np.array_equal(left, values, equal_nan=True)
