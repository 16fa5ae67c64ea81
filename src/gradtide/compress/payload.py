"""A compressed gradient as bytes: sixteen that say what it is, then the codec's own. All is checked before it is used.

Its length depends on the codec and the form alone, so that all workers' have the same. What can't be encoded, since a
value is not finite, goes apart (between workers) or as it is (`pack`).
"""

import struct
from enum import IntEnum
from typing import Any

import numpy as np

from gradtide.compress.codec import Codec, Form, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of

__all__ = ["PayloadKind", "is_finite", "pack", "payload_bytes", "read", "unpack", "write", "write_nothing"]

_HEADER = struct.Struct("<BBBBIQ")  # codec, bytes of an element, kind, version, what is kept, elements
HEADER_BYTES = _HEADER.size
_VERSION = 1
_ALIGNED = 8


class PayloadKind(IntEnum):
    """What follows."""

    CODED = 0
    DENSE = 1  # the values as they are
    NOTHING = 2  # there was no gradient
    APART = 3  # a value is not finite: the gradient comes by another way


def _largest(element: Element) -> Any:
    U, mask = element.bits, element.bits((1 << (element.width - 1)) - 1)

    def largest(bits: Any) -> Any:
        top = U(0)
        for i in range(bits.shape[0]):
            top = max(top, U(bits[i] & mask))
        return top

    return largest


_LARGEST = CodecKernel(_largest)


def is_finite(values: Array) -> bool:
    """Whether all of them are."""
    element = element_of(values.dtype)
    return int(_LARGEST(values.dtype, values.view(element.bits))) < element.infinite


def payload_bytes(codec: Codec, form: Form) -> int:
    """How long it is, in whole words."""
    return -(-(HEADER_BYTES + codec.body_bytes(form)) // _ALIGNED) * _ALIGNED


def write(codec: Codec, values: Array, form: Form, out: Array, draw: int) -> bool:
    """Encodes into `out`, which is as long as a payload is. False, and values stay, if one of them is not finite,
    or beyond the codec."""
    body = codec.body_bytes(form)
    done = is_finite(values) and codec.encode(values, form, out[HEADER_BYTES : HEADER_BYTES + body], draw)
    _head(out, codec, form, PayloadKind.CODED if done else PayloadKind.APART)
    out[HEADER_BYTES + body :] = 0
    return done


def write_nothing(codec: Codec, form: Form, out: Array) -> None:
    """There is no gradient: it counts as zeros, and whatever was left out stays."""
    _head(out, codec, form, PayloadKind.NOTHING)


def pack(codec: Codec, values: Array, form: Form, draw: int) -> Array:
    """A payload of its own. What is not finite goes as it is, and stays in `values`, too."""
    out = np.zeros(payload_bytes(codec, form), np.uint8)
    if write(codec, values, form, out, draw):
        return out
    dense = np.zeros(HEADER_BYTES + values.nbytes, np.uint8)
    _head(dense, codec, form, PayloadKind.DENSE)
    dense[HEADER_BYTES:] = values.view(np.uint8)
    return dense


def read(codec: Codec, payload: Array, form: Form) -> PayloadKind:
    """What it is. Raises DataError unless all of it is as it must be; nothing is allocated for what it claims."""
    if len(payload) < HEADER_BYTES:
        refuse(f"{len(payload)} bytes are fewer than a header's")
    number, width, kind, version, kept, count = _HEADER.unpack_from(payload.data)
    if version != _VERSION or number != codec.number:
        refuse(f"it is of codec {number}, version {version}, and not of {codec.name}, version {_VERSION}")
    if count != form.count or width != form.dtype.itemsize:
        refuse(f"it has {count} values of {width} bytes, and {form.count} of {form.dtype.itemsize} are expected")
    if kept > count:
        refuse(f"it keeps {kept} of {count} values")
    if kept != codec.kept(form):
        refuse(f"it keeps {kept}, and {codec.kept(form)} are expected")
    if kind not in PayloadKind.__members__.values():
        refuse(f"no kind {kind} is known")
    length = HEADER_BYTES + count * width if kind == PayloadKind.DENSE else payload_bytes(codec, form)
    if len(payload) != length:
        refuse(f"it has {len(payload)} bytes, and {length} are expected")
    if kind == PayloadKind.CODED:
        codec.check(_body(codec, payload, form), form)
    return PayloadKind(kind)


def unpack(codec: Codec, payload: Array, form: Form, out: Array, *, add: bool = False) -> PayloadKind:
    """Checks it; what it holds becomes, or is added to, `out`. One that comes apart counts as zeros here."""
    payload = _aligned(payload)
    kind = read(codec, payload, form)
    if kind == PayloadKind.CODED:
        codec.decode(_body(codec, payload, form), form, out, add)
    elif kind == PayloadKind.DENSE:
        dense = payload[HEADER_BYTES:].view(form.dtype)
        np.add(out, dense, out) if add else np.copyto(out, dense)
    elif not add:
        out[:] = 0
    return kind


def _head(out: Array, codec: Codec, form: Form, kind: PayloadKind) -> None:
    width, kept = form.dtype.itemsize, codec.kept(form)
    _HEADER.pack_into(out.data, 0, codec.number, width, kind, _VERSION, kept, form.count)


def _body(codec: Codec, payload: Array, form: Form) -> Array:
    return payload[HEADER_BYTES : HEADER_BYTES + codec.body_bytes(form)]


def _aligned(payload: Array) -> Array:
    """Kernels read whole words, from memory that they may write to."""
    if payload.ctypes.data % _ALIGNED or not payload.flags.writeable:
        return payload.copy()
    return payload
