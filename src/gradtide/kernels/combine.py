"""The compiled pass that adds up what the ranks handed over.

One pass over memory: the sum of what every rank's gradient counts, in rank order, goes to a scratch that stays in the
cache for the optimizer; and where the first other rank's gradient lay, the old values are kept, until the step is
finished on all ranks. (Torch's own operations, one after the other, took 5 to 10 % of a training step more.)
"""

import warnings
from typing import Any

import torch
from numba import njit, types
from numba.core.errors import NumbaWarning

__all__ = ["ELEMENTS", "combine_for"]

_BLOCK = 2048  # elements: what is read and written at a time stays in the first-level cache
ELEMENTS = {torch.float32: types.float32, torch.float64: types.float64}
_compiled: dict[torch.dtype, Any] = {}


def _combine(own: Any, inbox: Any, row: Any, values: Any, at: Any, rank: Any, ranks: Any, weight: Any, out: Any) -> Any:
    """own: this rank's gradient, not weighed yet. inbox: a row for each other rank, in rank order, already weighed.

    `at` is where these elements lie in a row and in `values`; the old values are kept in the first row.
    """
    for begin in range(0, own.shape[0], _BLOCK):
        length = min(_BLOCK, own.shape[0] - begin)
        # Slices that begin at 0: numba does not make vector code of an index that it can't prove to be positive.
        target, mine = out[begin : begin + length], own[begin : begin + length]
        old, kept = values[at + begin : at + begin + length], inbox[at + begin : at + begin + length]
        if ranks == 2:  # the sum does not depend on the order of two, and all of it is one loop
            for i in range(length):
                target[i] = kept[i] + mine[i] * weight
                kept[i] = old[i]
            continue
        for source in range(ranks):
            first = (source if source < rank else source - 1) * row + at + begin
            theirs = inbox[first : first + length]
            if source == rank and source == 0:
                for i in range(length):
                    target[i] = mine[i] * weight
            elif source == rank:
                for i in range(length):
                    target[i] += mine[i] * weight
            elif source == 0:
                for i in range(length):
                    target[i] = theirs[i]
            else:
                for i in range(length):
                    target[i] += theirs[i]
        for i in range(length):
            kept[i] = old[i]


def combine_for(dtype: torch.dtype) -> Any:
    """The compiled function for elements of this dtype, loaded from numba's cache on disk where there is one."""
    if dtype not in _compiled:
        element, whole = ELEMENTS[dtype], types.int64
        array = types.Array(element, 1, "C")
        signature = types.void(array, array, whole, array, whole, whole, whole, element, array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaWarning)
            try:
                _compiled[dtype] = njit(signature, nogil=True, cache=True)(_combine)
            except Exception:  # a cache that can't be written costs the seconds of a compilation, never the run
                _compiled[dtype] = njit(signature, nogil=True)(_combine)
    return _compiled[dtype]
