"""The compiled part: meeting in shared memory, copying and reducing, with the GIL released and no fastmath.

words.py         where kernels and Python put the numbers that they tell each other
futex.py         sleeping until a word in shared memory changes
atomics.py       what numba lacks: atomics, addresses, system calls
arithmetic.py    what a reduction does with a block of elements, for each type and reduction
meeting.py       counters, and meetings of all ranks
reducing.py      all-reduce in one call
handing.py       what ranks of a host hand each other through the slots, added up or as it is
sockets.py       system calls on sockets that never wait
exchange.py      an exchange between hosts: all links at once, added up while the rest arrives
transfer.py      messages between hosts: several streams at once, each one way
combine.py       the pass that adds up what ranks handed over, for parameters in shared memory
compiled.py      all that, as Python calls it: compiled when first asked for, or loaded from the disk
machine_code.py  machine code on the disk, and how it is loaded without numba
compiling.py     machine code that does without numba, made by numba
masks.py         which elements of a value dropout keeps
"""

from gradtide.kernels.compiled import KERNELS, blocks_of
from gradtide.kernels.words import (
    BROKEN,
    BUFFERS,
    DONE,
    LINE_BYTES,
    MISMATCHED,
    WAITING,
    Deal,
    ExchangePlan,
    HandEntry,
    HandKind,
    HandPlan,
    Head,
    Line,
    LinkRow,
    Me,
    Op,
    Piece,
    Row,
    Stream,
    Transfer,
)

__all__ = [
    "BROKEN",
    "BUFFERS",
    "DONE",
    "KERNELS",
    "LINE_BYTES",
    "MISMATCHED",
    "WAITING",
    "Deal",
    "ExchangePlan",
    "HandEntry",
    "HandKind",
    "HandPlan",
    "Head",
    "Line",
    "LinkRow",
    "Me",
    "Op",
    "Piece",
    "Row",
    "Stream",
    "Transfer",
    "blocks_of",
]
