"""Where kernels and Python put the numbers that they tell each other, all of them int64. numba takes the fields of a
global named tuple for constants."""

from typing import NamedTuple

__all__ = ["BUFFERS", "DONE", "LINE_BYTES", "MISMATCHED", "WAITING", "Line", "Me", "Op", "Plan", "Row"]

LINE_BYTES = 128  # two cache lines: prefetchers fetch them in pairs
BUFFERS = 4  # of a rank's slots; three are needed, see docs/collectives.md; a power of two is quicker
DONE, WAITING, MISMATCHED = 0, 1, 2


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


class _CounterLine(NamedTuple):
    """A counter in shared memory: its value, which only its owner raises, and what its owner says at a meeting."""

    VALUE: int = 0
    WATCHED: int = 1  # whether somebody sleeps on it
    SIGNATURE: int = 2  # from here on each has BUFFERS words, one a buffer
    SEGMENT: int = 2 + BUFFERS
    OFFSET: int = 2 + 2 * BUFFERS
    CORE: int = 2 + 3 * BUFFERS  # where its owner ran when it raised it
    WORDS: int = 3 + 3 * BUFFERS


class _Me(NamedTuple):
    """The block that says who calls a kernel and how far it is."""

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
    SEGMENTS: int = 13  # address of the rows of shared memory
    ROWS: int = 14  # how many there are
    IN_PLACE_BYTES: int = 15  # tensors in shared memory are reduced where they lie from this size on
    BEARS: int = 16  # until this meeting, to share a core with who is awaited
    SOURCES: int = 17  # from here on: one address a rank


class _Row(NamedTuple):
    """One memory that all ranks have mapped, with a part for each."""

    BEGIN: int = 0  # of this rank's part
    END: int = 1  # 0 when the row is free
    NUMBER: int = 2  # what all ranks call it
    FIRST: int = 3  # where rank 0's part begins
    PART_BYTES: int = 4
    WORDS: int = 5


class _Plan(NamedTuple):
    """What is the same at every all-reduce of one shape, type and reduction."""

    ME: int = 0
    COUNT: int = 1  # of elements
    ITEM: int = 2  # bytes of one
    SIGNATURE: int = 3
    COMBINE: int = 4  # address of the block that adds a rank
    LAST: int = 5  # of the one that adds the last rank
    WORDS: int = 6


Op, Line, Me, Row, Plan = _Ops(), _CounterLine(), _Me(), _Row(), _Plan()
