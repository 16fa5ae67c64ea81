"""A compressed gradient as bytes: sixteen that say what it is, then the codec's own. All is checked before it is used.

Its length depends on the codec and the layout alone, so that all workers' have the same. What can't be encoded, since a
value is not finite, goes apart (between workers) or as it is (`pack`).
"""

import struct
from enum import IntEnum
from typing import Any

import numpy as np

from gradtide.compress.codec import Codec, Layout, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element, element_of

__all__ = ["Kind", "is_finite", "pack", "payload_bytes", "read", "unpack", "write", "write_nothing"]

_HEADER = struct.Struct("<BBBBIQ")  # codec, bytes of an element, kind, version, what is kept, elements
HEADER_BYTES = _HEADER.size
_VERSION = 1
_ALIGNED = 8


class Kind(IntEnum):
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


def payload_bytes(codec: Codec, layout: Layout) -> int:
    """How long it is, in whole words."""
    return -(-(HEADER_BYTES + codec.body_bytes(layout)) // _ALIGNED) * _ALIGNED


def write(codec: Codec, values: Array, layout: Layout, out: Array, draw: int) -> bool:
    """Encodes into `out`, which is as long as a payload is. False, and values stay, if one of them is not finite,
    or beyond the codec."""
    body = codec.body_bytes(layout)
    done = is_finite(values) and codec.encode(values, layout, out[HEADER_BYTES : HEADER_BYTES + body], draw)
    _head(out, codec, layout, Kind.CODED if done else Kind.APART)
    out[HEADER_BYTES + body :] = 0
    return done


def write_nothing(codec: Codec, layout: Layout, out: Array) -> None:
    """There is no gradient: it counts as zeros, and whatever was left out stays."""
    _head(out, codec, layout, Kind.NOTHING)


def pack(codec: Codec, values: Array, layout: Layout, draw: int) -> Array:
    """A payload of its own. What is not finite goes as it is, and stays in `values`, too."""
    out = np.zeros(payload_bytes(codec, layout), np.uint8)
    if write(codec, values, layout, out, draw):
        return out
    dense = np.zeros(HEADER_BYTES + values.nbytes, np.uint8)
    _head(dense, codec, layout, Kind.DENSE)
    dense[HEADER_BYTES:] = values.view(np.uint8)
    return dense


def read(codec: Codec, payload: Array, layout: Layout) -> Kind:
    """What it is. Raises DataError unless all of it is as it must be; nothing is allocated for what it claims."""
    if len(payload) < HEADER_BYTES:
        refuse(f"{len(payload)} bytes are fewer than a header's")
    number, width, kind, version, kept, count = _HEADER.unpack_from(payload.data)
    if version != _VERSION or number != codec.number:
        refuse(f"it is of codec {number}, version {version}, and not of {codec.name}, version {_VERSION}")
    if count != layout.count or width != layout.dtype.itemsize:
        refuse(f"it has {count} values of {width} bytes, and {layout.count} of {layout.dtype.itemsize} are expected")
    if kept > count:
        refuse(f"it keeps {kept} of {count} values")
    if kept != codec.kept(layout):
        refuse(f"it keeps {kept}, and {codec.kept(layout)} are expected")
    if kind not in Kind.__members__.values():
        refuse(f"no kind {kind} is known")
    length = HEADER_BYTES + count * width if kind == Kind.DENSE else payload_bytes(codec, layout)
    if len(payload) != length:
        refuse(f"it has {len(payload)} bytes, and {length} are expected")
    if kind == Kind.CODED:
        codec.check(_body(codec, payload, layout), layout)
    return Kind(kind)


def unpack(codec: Codec, payload: Array, layout: Layout, out: Array, *, add: bool = False) -> Kind:
    """Checks it; what it holds becomes, or is added to, `out`. One that comes apart counts as zeros here."""
    payload = _aligned(payload)
    kind = read(codec, payload, layout)
    if kind == Kind.CODED:
        codec.decode(_body(codec, payload, layout), layout, out, add)
    elif kind == Kind.DENSE:
        dense = payload[HEADER_BYTES:].view(layout.dtype)
        np.add(out, dense, out) if add else np.copyto(out, dense)
    elif not add:
        out[:] = 0
    return kind


def _head(out: Array, codec: Codec, layout: Layout, kind: Kind) -> None:
    width, kept = layout.dtype.itemsize, codec.kept(layout)
    _HEADER.pack_into(out.data, 0, codec.number, width, kind, _VERSION, kept, layout.count)


def _body(codec: Codec, payload: Array, layout: Layout) -> Array:
    return payload[HEADER_BYTES : HEADER_BYTES + codec.body_bytes(layout)]


def _aligned(payload: Array) -> Array:
    """Kernels read whole words, from memory that they may write to."""
    if payload.ctypes.data % _ALIGNED or not payload.flags.writeable:
        return payload.copy()
    return payload
