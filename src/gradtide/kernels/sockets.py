"""The system calls of sockets that never wait, for kernels: libc's own functions, found by name when code is linked.

A call that can't go on just now gives AGAIN, one whose connection is broken gives minus the error's number.
"""

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

__all__ = ["AGAIN", "MORE", "nanoseconds", "poll_all", "receive_some", "send_some"]

AGAIN = -11  # EAGAIN
MORE = 0x8000  # MSG_MORE: what follows goes into the same packet
_DONTWAIT, _NOSIGNAL = 0x40, 0x4000
_EINTR = 4
_MONOTONIC = 1


@intrinsic
def _send(context: Any, descriptor: Any, address: Any, size_bytes: Any, flags: Any) -> Any:
    """send(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _on_socket(builder, "send", arguments)

    return types.int64(*[types.int64] * 4), generate


@intrinsic
def _recv(context: Any, descriptor: Any, address: Any, size_bytes: Any, flags: Any) -> Any:
    """recv(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _on_socket(builder, "recv", arguments)

    return types.int64(*[types.int64] * 4), generate


def _on_socket(builder: Any, name: str, arguments: Any) -> Any:
    word, narrow = ir.IntType(64), ir.IntType(32)
    kind = ir.FunctionType(word, [narrow, word, word, narrow])
    descriptor, address, size_bytes, flags = arguments
    call = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(call, [builder.trunc(descriptor, narrow), address, size_bytes, builder.trunc(flags, narrow)])


@intrinsic
def _poll(context: Any, entries: Any, count: Any, timeout_ms: Any) -> Any:
    """poll(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, narrow = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(narrow, [word, word, narrow])
        call = cgutils.get_or_insert_function(builder.module, kind, "poll")
        found = builder.call(call, [arguments[0], arguments[1], builder.trunc(arguments[2], narrow)])
        return builder.sext(found, word)

    return types.int64(*[types.int64] * 3), generate


@intrinsic
def _errno(context: Any) -> Any:
    """The number of this thread's last error."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32).as_pointer(), [])
        place = builder.call(cgutils.get_or_insert_function(builder.module, kind, "__errno_location"), [])
        return builder.sext(builder.load(place), ir.IntType(64))

    return types.int64(), generate


@intrinsic
def nanoseconds(context: Any) -> Any:
    """clock_gettime(2) of the monotonic clock."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, narrow = ir.IntType(64), ir.IntType(32)
        pair = cgutils.alloca_once(builder, ir.ArrayType(word, 2))
        kind = ir.FunctionType(narrow, [narrow, pair.type])
        call = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(call, [ir.Constant(narrow, _MONOTONIC), pair])
        seconds, rest = (
            builder.load(builder.gep(pair, [ir.Constant(narrow, 0), ir.Constant(narrow, n)])) for n in (0, 1)
        )
        return builder.add(builder.mul(seconds, ir.Constant(word, 10**9)), rest)

    return types.int64(), generate


@register_jitable
def _judged(count: Any) -> Any:
    if count >= 0:
        return count
    error = _errno()
    return AGAIN if error == _EINTR else -error


@register_jitable
def send_some(descriptor: Any, address: Any, size_bytes: Any, flags: Any) -> Any:
    """How many bytes the kernel took."""
    return _judged(_send(descriptor, address, size_bytes, _DONTWAIT | _NOSIGNAL | flags))


@register_jitable
def receive_some(descriptor: Any, address: Any, size_bytes: Any) -> Any:
    """How many bytes have come; 0 means that the other end has closed."""
    return _judged(_recv(descriptor, address, size_bytes, _DONTWAIT))


@register_jitable
def poll_all(entries: Any, count: Any, timeout_ms: Any) -> Any:
    """How many of these can go on; 0 or less if none can within the time, or a signal came."""
    return _poll(entries, count, timeout_ms)
