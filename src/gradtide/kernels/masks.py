"""Which elements of a value dropout keeps: a hash of a key, the sample's number and the element's number within it.

The hash is SplitMix64's: a sequence of its own for each sample, whose start is itself hashed from the key.
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.errors import NumbaWarning

__all__ = ["GOLDEN", "MIX_ONE", "MIX_TWO", "fill_mask"]

GOLDEN = 0x9E3779B97F4A7C15
MIX_ONE = 0xBF58476D1CE4E5B9
MIX_TWO = 0x94D049BB133111EB


def _fill(mask, rows, outer, own, inner, total, offset, key, first, threshold):  # type: ignore[no-untyped-def]
    """Row after row of outer x own x inner elements, where the whole value has `total` from `offset` on, for `own`."""
    golden, one, two = np.uint64(GOLDEN), np.uint64(MIX_ONE), np.uint64(MIX_TWO)
    at = 0
    for row in range(rows):
        z = key + golden * np.uint64(first + row + 1)
        z = (z ^ (z >> np.uint64(30))) * one
        z = (z ^ (z >> np.uint64(27))) * two
        start = z ^ (z >> np.uint64(31))
        for out in range(outer):
            unit = np.uint64((out * total + offset) * inner + 1)
            for i in range(own * inner):
                z = start + golden * (unit + np.uint64(i))
                z = (z ^ (z >> np.uint64(30))) * one
                z = (z ^ (z >> np.uint64(27))) * two
                z = z ^ (z >> np.uint64(31))
                mask[at + i] = (z >> np.uint64(11)) >= threshold
            at += own * inner


@cache
def fill_mask() -> Any:
    """The compiled function, loaded from numba's cache on disk where there is one."""
    whole, word = types.int64, types.uint64
    signature = types.void(
        types.Array(types.boolean, 1, "C"), whole, whole, whole, whole, whole, whole, word, whole, word
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        try:
            return njit(signature, nogil=True, cache=True)(_fill)
        except Exception:  # a cache that can't be written costs the seconds of a compilation, never the run
            return njit(signature, nogil=True)(_fill)
