"""Looking again before sleeping.

A processor that sleeps takes 50 to 200 us to wake on a virtual machine: longer than a small request takes. So who
expects something within that time looks again for a moment, but only on a processor that nobody else wants: it offers
it to others all the time, and as soon as one takes it, it sleeps.
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

__all__ = ["give_way", "look_again"]

_LOOK_AGAIN_S = 100e-6
_TAKEN_S = 8e-6  # a turn that takes longer let somebody else run; one that doesn't takes 2 to 3 us

T = TypeVar("T")
give_way = os.sched_yield


def look_again(look: Callable[[int], T]) -> T:
    """What `look(0)` finds as soon as it finds something; else what it found last."""
    give_way()  # on a processor that two share, the other one does its part now
    found = look(0)
    if found:
        return found
    now_s = perf_counter()
    until_s = now_s + _LOOK_AGAIN_S
    while True:
        give_way()
        before_s, now_s = now_s, perf_counter()
        found = look(0)
        if found or now_s > until_s or now_s - before_s > _TAKEN_S:
            return found
