"""Looking again before sleeping.

A processor that sleeps takes 50 to 200 us to wake on a virtual machine: longer than a small request takes. So who
expects something within that time looks again for a moment, but only on a processor that nobody else wants: it offers
it to others all the time, and when one has taken it, it goes to sleep at once for a while, as everybody else does (who
offers is served after all the others, who sleeps before).
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

__all__ = ["Patience"]

_LOOK_AGAIN_S = 100e-6
_TAKEN_S = 6e-6  # an offer that takes longer let somebody else run; one that doesn't takes less than 1 us
_LONG_S = 300e-6  # and if it takes that long, somebody computes here who does not just answer
_REST_S = 0.001  # how long not to look again after that; it doubles
_REST_MOST_S = 0.128

T = TypeVar("T")
_yield = os.sched_yield


class Patience:
    """Of one who waits again and again."""

    __slots__ = ("_rest_s", "_rest_until_s")

    def __init__(self) -> None:
        self._rest_s, self._rest_until_s = _REST_S, 0.0

    def look_again(self, look: Callable[[int], T]) -> T | None:
        """What `look(0)` finds, as soon as it finds something; else nothing, and it is time to sleep."""
        now_s = perf_counter()
        if now_s < self._rest_until_s:
            return None
        until_s = now_s + _LOOK_AGAIN_S
        while now_s < until_s:
            found = look(0)
            if found:
                self._rest_s = _REST_S
                return found
            before_s = perf_counter()
            _yield()
            now_s = perf_counter()
            if now_s - before_s > _TAKEN_S:
                return self._taken(look, now_s, now_s - before_s)
        return None

    def _taken(self, look: Callable[[int], T], now_s: float, taken_s: float) -> T | None:
        """Somebody else ran: who we wait for, if there is something now."""
        found = look(0)
        if not found or taken_s > _LONG_S:
            self._rest_until_s = now_s + self._rest_s
            self._rest_s = min(2 * self._rest_s, _REST_MOST_S)
        return found
