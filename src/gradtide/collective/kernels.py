"""The compiled part: meeting in shared memory, copying and reducing, with the GIL released and no fastmath.

A *counter* is a 128-byte line of shared memory: word 0 is its value, which only its owner raises; word 1 says that
somebody sleeps on it. Who raises a value releases (all it wrote before is visible to who sees the value), who reads it
acquires; LLVM makes of that what x86 or aarch64 needs. No kernel waits for ever: after a bounded spin it returns
WAITING, the caller sleeps and checks that the peers live, and calls it again to resume where it was.

Every kernel lives in this one file because numba's cache on disk looks at this file alone to see whether it is stale.
"""

import platform
import warnings
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.core.errors import NumbaIRAssumptionWarning
from numba.extending import intrinsic, overload, register_jitable

from gradtide.transport.futex import FUTEX_CALL

__all__ = [
    "BUFFERS",
    "DONE",
    "KERNELS",
    "LINE_BYTES",
    "MISMATCHED",
    "WAITING",
    "Kernel",
    "Me",
    "Op",
]

LINE_BYTES = 128  # two cache lines: prefetchers fetch them in pairs
BUFFERS = 4  # of a rank's slots; three are needed, see docs/collectives.md; a power of two is quicker
DONE, WAITING, MISMATCHED = 0, 1, 2
_WATCHED, _SIGNATURE, _SEGMENT, _OFFSET = 1, 2, 6, 10  # words of a counter's line; the last three have BUFFERS words
_BLOCK_BYTES = 8192  # a reduction works through blocks that stay in the first-level cache
_ALIGN_BYTES = 64  # parts begin on cache lines, so that two ranks never write the same one


class _Ops(NamedTuple):
    """What a reduction computes, as kernels know it."""

    SUM: int = 0
    MEAN: int = 1
    MIN: int = 2
    MAX: int = 3
    PRODUCT: int = 4
    BAND: int = 5
    BOR: int = 6
    BXOR: int = 7


class _Words(NamedTuple):
    """Words of the block of int64 that says who calls a kernel and how far it is."""

    COUNTERS: int = 0  # address of the counters
    RANK: int = 1
    SIZE: int = 2
    SEQUENCE: int = 3  # of the last meeting
    SPINS: int = 4
    YIELDS: int = 5
    SLOTS: int = 6  # address of the slots
    SLOT_BYTES: int = 7
    PIECE: int = 8  # where to resume
    PHASE: int = 9
    SPLIT_BYTES: int = 10  # pieces from this size on are split between the ranks
    PIECE_BYTES: int = 11
    AWAITED: int = 12  # the value that the counters are waited for to reach
    SOURCES: int = 16  # from here on: one address a rank


Op, Me = _Ops(), _Words()  # numba takes the fields of a global named tuple for constants


# --- What numba lacks: atomics, addresses, two system calls, bit casts ---


@intrinsic
def _load(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _fence(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _relax(context: Any) -> Any:
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
def _give_way(context: Any) -> Any:
    """sched_yield(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _wake(context: Any, address: Any) -> Any:
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
def _copy(context: Any, target: Any, source: Any, size_bytes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _pointer(context: Any, address: Any, zero: Any) -> Any:
    """An address as a pointer to values of zero's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(zero)(types.int64, zero), generate


@intrinsic
def _float_of_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of_float(context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


# --- Element types: uint16 stands for bfloat16, which numba does not know ---


def _widen(value: Any) -> Any: ...


def _narrow(value: Any, zero: Any) -> Any: ...


def _both_bits(kind: Any, left: Any, right: Any) -> Any: ...


@overload(_widen, strict=False)
def _widen_overload(value: Any) -> Any:
    if value == types.uint16:
        return lambda value: _float_of_bits(np.uint32(np.uint32(value) << np.uint32(16)))
    return lambda value: value


@overload(_narrow, strict=False)
def _narrow_overload(value: Any, zero: Any) -> Any:
    if zero != types.uint16:
        return lambda value, zero: value

    def round_to_even(value: Any, zero: Any) -> Any:
        wide = np.float32(value)
        bits = _bits_of_float(wide)
        rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.uint16(0x7FC0) if wide != wide else np.uint16(rounded)

    return round_to_even


@overload(_both_bits, strict=False)
def _both_bits_overload(kind: Any, left: Any, right: Any) -> Any:
    if not isinstance(left, types.Integer) or left == types.uint16:
        return lambda kind, left, right: left

    def bitwise(kind: Any, left: Any, right: Any) -> Any:
        if kind == Op.BAND:
            return left & right
        return left | right if kind == Op.BOR else left ^ right

    return bitwise


@register_jitable
def _combine(op: Any, target: Any, left: Any, right: Any, count: Any, zero: Any) -> None:
    """target = left op right, elementwise. Target and left may be the same memory, but must not overlap otherwise.

    LLVM's vector code asks whether two arrays overlap, and goes one by one if they do; of one array it need not ask.
    """
    out, b = carray(_pointer(target, zero), count), carray(_pointer(right, zero), count)
    if target == left:
        _elementwise(op, out, out, b, count, zero)
    else:
        _elementwise(op, out, carray(_pointer(left, zero), count), b, count, zero)


@register_jitable(inline="always")
def _elementwise(op: Any, out: Any, a: Any, b: Any, count: Any, zero: Any) -> None:
    """out = a op b; NaN wins in min and max, as in torch."""
    if op in (Op.SUM, Op.MEAN):
        for i in range(count):
            out[i] = _narrow(_widen(a[i]) + _widen(b[i]), zero)
    elif op == Op.PRODUCT:
        for i in range(count):
            out[i] = _narrow(_widen(a[i]) * _widen(b[i]), zero)
    elif op == Op.MIN:
        for i in range(count):
            left_value, right_value = _widen(a[i]), _widen(b[i])
            out[i] = a[i] if left_value < right_value or left_value != left_value else b[i]
    elif op == Op.MAX:
        for i in range(count):
            left_value, right_value = _widen(a[i]), _widen(b[i])
            out[i] = a[i] if left_value > right_value or left_value != left_value else b[i]
    elif op == Op.BAND:
        for i in range(count):
            out[i] = _both_bits(Op.BAND, a[i], b[i])
    elif op == Op.BOR:
        for i in range(count):
            out[i] = _both_bits(Op.BOR, a[i], b[i])
    else:
        for i in range(count):
            out[i] = _both_bits(Op.BXOR, a[i], b[i])


@register_jitable
def _divide(target: Any, count: Any, divisor: Any, zero: Any) -> None:
    # float32 is divided as float64 here and rounded once more; with twice the digits and two that changes no bit.
    out = carray(_pointer(target, zero), count)
    for i in range(count):
        out[i] = _narrow(_widen(out[i]) / divisor, zero)


@register_jitable
def _reduce(me: Any, skip_bytes: Any, target: Any, count: Any, op: Any, zero: Any, item: Any) -> None:
    """target = the sources in rank order, one op after the other. The target may be the first source."""
    sources, ranks, block = me + 8 * Me.SOURCES, _word(me, Me.SIZE), _BLOCK_BYTES // item
    for begin in range(0, count, block):
        length, at = min(block, count - begin), skip_bytes + begin * item
        out = target + begin * item
        if ranks == 1:
            _copy(out, _word(sources, 0) + at, length * item)
        for rank in range(1, ranks):
            left = _word(sources, 0) + at if rank == 1 else out
            _combine(op, out, left, _word(sources, rank) + at, length, zero)
        if op == Op.MEAN:
            _divide(out, length, ranks, zero)


# --- Meeting ---


@register_jitable
def _word(base: Any, index: Any) -> Any:
    return carray(_pointer(base, np.int64(0)), index + 1)[index]


@register_jitable
def _set_word(base: Any, index: Any, value: Any) -> None:
    carray(_pointer(base, np.int64(0)), index + 1)[index] = value


@register_jitable
def _post(counter: Any, value: Any) -> None:
    """Raises a counter and wakes who sleeps on it. The fence orders "raise, then look for sleepers" against their
    "say that I sleep, then look at the value": one of the two sees the other."""
    _store(counter, value)
    _fence()
    if _load(counter + 8 * _WATCHED):
        _store(counter + 8 * _WATCHED, 0)
        _wake(counter)


@register_jitable
def _reached(counter: Any, value: Any, spins: Any, yields: Any) -> Any:
    """Whether the counter gets to value within a bounded spin."""
    for _ in range(spins):
        if _load(counter) >= value:
            return True
        _relax()
    for _ in range(yields):
        if _load(counter) >= value:
            return True
        _give_way()
    return _load(counter) >= value


@register_jitable
def _line(me: Any, rank: Any) -> Any:
    return _word(me, Me.COUNTERS) + LINE_BYTES * rank


@register_jitable
def _all_reached(me: Any, value: Any) -> Any:
    _set_word(me, Me.AWAITED, value)
    for rank in range(_word(me, Me.SIZE)):
        if not _reached(_line(me, rank), value, _word(me, Me.SPINS), _word(me, Me.YIELDS)):
            return False
    return True


@register_jitable
def _all_sign(me: Any, sequence: Any, signature: Any) -> Any:
    for rank in range(_word(me, Me.SIZE)):
        if _word(_line(me, rank), _SIGNATURE + sequence % BUFFERS) != signature:
            return False
    return True


@register_jitable
def _slot(me: Any, rank: Any, sequence: Any) -> Any:
    return _word(me, Me.SLOTS) + (rank * BUFFERS + sequence % BUFFERS) * _word(me, Me.SLOT_BYTES)


@register_jitable
def _show(me: Any, sequence: Any, signature: Any, source: Any, size_bytes: Any) -> None:
    """Copies in, signs, and arrives."""
    line = _line(me, _word(me, Me.RANK))
    if size_bytes:
        _copy(_slot(me, _word(me, Me.RANK), sequence), source, size_bytes)
    _set_word(line, _SIGNATURE + sequence % BUFFERS, signature)
    _post(line, sequence)


def _step(me: Any, signature: Any, segment: Any, offset: Any) -> Any:
    """One meeting of all ranks: what they wrote before it is visible after it. PHASE is 1 while it waits."""
    sequence = _word(me, Me.SEQUENCE) + 1
    if _word(me, Me.PHASE) == 0:
        line, version = _line(me, _word(me, Me.RANK)), sequence % BUFFERS
        _set_word(line, _SEGMENT + version, segment)
        _set_word(line, _OFFSET + version, offset)
        _show(me, sequence, signature, 0, 0)
        _set_word(me, Me.PHASE, 1)
    if not _all_reached(me, sequence):
        return WAITING
    _set_word(me, Me.PHASE, 0)
    _set_word(me, Me.SEQUENCE, sequence)
    return DONE if _all_sign(me, sequence, signature) else MISMATCHED


@register_jitable
def _aim(me: Any, sequence: Any) -> None:
    for rank in range(_word(me, Me.SIZE)):
        _set_word(me, Me.SOURCES + rank, _slot(me, rank, sequence))


def _staged(me: Any, tensor: Any, count: Any, op: Any, signature: Any, zero: Any, item: Any) -> Any:
    """All-reduce of an ordinary tensor through the slots, a piece at a time.

    Whole: every rank reduces the piece for itself, so a piece is one meeting; the next piece is published before this
    one is reduced, so nobody waits for a slow reader. Split (three ranks and more, large pieces): each rank reduces its
    part in the first rank's slot, they meet again, and everybody copies the piece out.
    """
    rank, ranks = _word(me, Me.RANK), _word(me, Me.SIZE)
    per_piece = _word(me, Me.PIECE_BYTES) // item
    pieces = max(1, (count + per_piece - 1) // per_piece)
    split = ranks > 2 and min(count, per_piece) * item >= _word(me, Me.SPLIT_BYTES)
    first, meetings = _word(me, Me.SEQUENCE) + 1, 2 if split else 1
    if _word(me, Me.PHASE) == 0:
        _show(me, first, signature, tensor, min(count, per_piece) * item)
        _set_word(me, Me.PHASE, 1)
    for piece in range(_word(me, Me.PIECE), pieces):
        _set_word(me, Me.PIECE, piece)
        sequence, here = first + piece * meetings, tensor + piece * per_piece * item
        length, begin, end, target = min(per_piece, count - piece * per_piece), 0, 0, here
        following = min(per_piece, count - (piece + 1) * per_piece) * item  # 0 or less when this is the last
        if _word(me, Me.PHASE) == 1:
            if not _all_reached(me, sequence):
                return WAITING
            if piece == 0 and not _all_sign(me, sequence, signature):
                _set_word(me, Me.SEQUENCE, sequence)
                _set_word(me, Me.PHASE, 0)
                return MISMATCHED
            _aim(me, sequence)
            if split:
                begin, end = _part(length, rank, ranks, item)
                target = _slot(me, 0, sequence) + begin * item
            else:
                begin, end = 0, length
                if following > 0:
                    _show(me, sequence + 1, signature, here + length * item, following)
            _reduce(me, begin * item, target, end - begin, op, zero, item)
            if split:
                _show(me, sequence + 1, signature, 0, 0)
                _set_word(me, Me.PHASE, 2)
        if split:
            if not _all_reached(me, sequence + 1):
                return WAITING
            if following > 0:
                _show(me, sequence + 2, signature, here + length * item, following)
            _copy(here, _slot(me, 0, sequence), length * item)
            _set_word(me, Me.PHASE, 1)
    _set_word(me, Me.PHASE, 0)
    _set_word(me, Me.PIECE, 0)
    _set_word(me, Me.SEQUENCE, first + pieces * meetings - 1)
    return DONE


@register_jitable
def _part(count: Any, rank: Any, ranks: Any, item: Any) -> Any:
    """Where a rank's part begins and ends: even, on cache lines."""
    grain = max(1, _ALIGN_BYTES // item)
    lines = (count + grain - 1) // grain
    return min(count, lines * rank // ranks * grain), min(count, lines * (rank + 1) // ranks * grain)


def _in_place(me: Any, count: Any, op: Any, zero: Any, item: Any) -> Any:
    """This rank's part of an all-reduce of tensors in shared memory: reduce it there, write it back to all.

    Block by block, so that what was read is still in the cache when it is written.
    """
    ranks, block = _word(me, Me.SIZE), _BLOCK_BYTES // item
    begin, end = _part(count, _word(me, Me.RANK), ranks, item)
    for at in range(begin, end, block):
        length = min(block, end - at)
        first = _word(me, Me.SOURCES) + at * item
        _reduce(me, at * item, first, length, op, zero, item)
        for rank in range(1, ranks):
            _copy(_word(me, Me.SOURCES + rank) + at * item, first, length * item)
    return DONE


def _reduce_sources(me: Any, target: Any, count: Any, op: Any, zero: Any, item: Any) -> Any:
    """Reduces the sources, in rank order, into target."""
    _reduce(me, 0, target, count, op, zero, item)
    return DONE


def _raise_counter(counter: Any, value: Any) -> Any:
    _post(counter, value)
    return DONE


def _spin(counter: Any, value: Any, spins: Any, yields: Any) -> Any:
    return DONE if _reached(counter, value, spins, yields) else WAITING


def _before_sleep(counter: Any) -> Any:
    """Says that somebody is about to sleep on this counter; returns its value after that."""
    _store(counter + 8 * _WATCHED, 1)
    _fence()
    return _load(counter)


# --- Compiling ---


class Kernel:
    """One of the functions above, compiled for a type of element when first asked for, or loaded from the cache."""

    def __init__(self, function: Any, words: int, typed: bool) -> None:
        self._function, self._words, self._typed = function, words, typed
        self._compiled: dict[Any, Any] = {}

    def __getitem__(self, element: Any) -> Any:
        """The machine code for elements of this numba type; call it with plain integers."""
        if element not in self._compiled:
            self._compiled[element] = self._compile(element)
        return self._compiled[element]

    def signature(self, element: Any) -> Any:
        words = [types.int64] * self._words
        return types.int64(*words, element, types.int64) if self._typed else types.int64(*words)

    def _compile(self, element: Any) -> Any:
        # A cache that is missing, read-only, full or damaged costs the seconds of a compilation, never the run.
        with warnings.catch_warnings():
            # numba doubts its own inlining of _elementwise; the tests compare every bit with torch's.
            warnings.simplefilter("ignore", NumbaIRAssumptionWarning)
            try:
                return self._entry(njit(nogil=True, cache=True)(self._function), element)
            except Exception:
                return self._entry(njit(nogil=True)(self._function), element)

    def _entry(self, dispatcher: Any, element: Any) -> Any:
        # The entry point takes the arguments as they are: a third of a microsecond less than numba's dispatch on types.
        signature = self.signature(element)
        dispatcher.compile(signature.args)
        return dispatcher.overloads[signature.args].entry_point


class KERNELS:
    """Every kernel. The typed ones end in a zero of the element's type and its size in bytes."""

    STEP = Kernel(_step, 4, typed=False)
    STAGED = Kernel(_staged, 5, typed=True)
    IN_PLACE = Kernel(_in_place, 3, typed=True)
    REDUCE = Kernel(_reduce_sources, 4, typed=True)
    RAISE = Kernel(_raise_counter, 2, typed=False)
    SPIN = Kernel(_spin, 4, typed=False)
    BEFORE_SLEEP = Kernel(_before_sleep, 1, typed=False)
