"""The compiled pass that adds up what the ranks handed over.

One pass over memory: the sum of what every rank's gradient counts, in rank order, goes to a scratch that stays in the
cache for the optimizer; and where the first other rank's gradient lay, the old values are kept, until the step is
finished on all ranks. (Torch's own operations, one after the other, took 5 to 10 % of a training step more.)
"""

from collections.abc import Callable
from typing import Any

from numba import carray, types

from gradtide.kernels.atomics import double_of_bits, pointer

__all__ = ["write_combine"]

_BLOCK = 2048  # elements: what is read and written at a time stays in the first-level cache


def write_combine(name: str) -> Callable[..., int]:
    """The function for elements of the numba type of this name, still to be compiled.

    own: where this rank's gradient lies, not weighed yet; `weight` is a float64's bits. inbox: where a row of elements
    for each other rank does, in rank order, already weighed. `at` is where these `count` elements lie in a row and in
    `values`; the old values are kept in the first row.
    """
    element: Any = getattr(types, name)
    item = element.bitwidth // 8

    def combine(
        own: Any,
        inbox: Any,
        row: Any,
        values: Any,
        at: Any,
        rank: Any,
        ranks: Any,
        weight: Any,
        count: Any,
        out: Any,
    ) -> int:
        zero, by = element(0), element(double_of_bits(weight))
        for begin in range(0, count, _BLOCK):
            length = min(_BLOCK, count - begin)
            target = carray(pointer(out + begin * item, zero), length)
            mine = carray(pointer(own + begin * item, zero), length)
            old = carray(pointer(values + (at + begin) * item, zero), length)
            kept = carray(pointer(inbox + (at + begin) * item, zero), length)
            if ranks == 2:  # the sum does not depend on the order of two, and all of it is one loop
                for i in range(length):
                    target[i] = kept[i] + mine[i] * by
                    kept[i] = old[i]
                continue
            for source in range(ranks):
                first = (source if source < rank else source - 1) * row + at + begin
                theirs = carray(pointer(inbox + first * item, zero), length)
                if source == rank and source == 0:
                    for i in range(length):
                        target[i] = mine[i] * by
                elif source == rank:
                    for i in range(length):
                        target[i] += mine[i] * by
                elif source == 0:
                    for i in range(length):
                        target[i] = theirs[i]
                else:
                    for i in range(length):
                        target[i] += theirs[i]
            for i in range(length):
                kept[i] = old[i]
        return 0

    return combine
