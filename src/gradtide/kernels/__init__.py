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
compiled.py      compiles all that when first asked for, or loads it from the disk
masks.py         which elements of a value dropout keeps
combine.py       the pass that adds up what ranks handed over, for parameters in shared memory
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
