"""What numba lacks: atomics, addresses, two system calls, calls through an address, bit casts.

Who raises a value releases (all it wrote before is visible to who sees the value), who reads it acquires; LLVM makes of
that what x86 or aarch64 needs.
"""

import platform
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gradtide.kernels.futex import FUTEX_CALL

__all__ = [
    "bits_of_float",
    "call_block",
    "copy",
    "core",
    "double_of_bits",
    "fence",
    "float_of_bits",
    "give_way",
    "load",
    "pointer",
    "relax",
    "set_word",
    "store",
    "wake",
    "word",
]


@intrinsic
def load(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def store(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fence(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def relax(context: Any) -> Any:
    """Tells the core that this is a spin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        elif platform.machine() == "aarch64":
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
            builder.call(hint, [ir.Constant(ir.IntType(32), 1)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(context: Any) -> Any:
    """sched_yield(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def core(context: Any) -> Any:
    """The number of the core that this runs on: sched_getcpu(3)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        number = builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu"), [])
        return builder.sext(number, ir.IntType(64))

    return types.int64(), generate


@intrinsic
def wake(context: Any, address: Any) -> Any:
    """futex(2): wakes all who sleep on this word, in whatever process."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 7)
        everybody, wake = ir.Constant(word, 2**31 - 1), ir.Constant(word, 1)
        zero = ir.Constant(word, 0)
        call = cgutils.get_or_insert_function(builder.module, kind, "syscall")
        builder.call(call, [ir.Constant(word, FUTEX_CALL), arguments[0], wake, everybody, zero, zero, zero])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def copy(context: Any, target: Any, source: Any, size_bytes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def pointer(context: Any, address: Any, zero: Any) -> Any:
    """An address as a pointer to values of zero's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(zero)(types.int64, zero), generate


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def double_of_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def bits_of_float(context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def call_block(
    context: Any, function: Any, target: Any, left: Any, right: Any, also: Any, count: Any, divisor: Any
) -> Any:
    """Calls one of arithmetic.py's blocks by its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 6)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def word(context: Any, base: Any, index: Any) -> Any:
    """The word so many words after an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(pointer, [arguments[1]]))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def set_word(context: Any, base: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[2], builder.gep(pointer, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate
