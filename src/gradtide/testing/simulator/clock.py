"""Time that passes only when everything due has happened."""

import heapq
from collections.abc import Callable

__all__ = ["VirtualClock"]


class VirtualClock:
    """Runs actions in the order of their time, and of their making where times are equal."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do `action` when so much time has passed."""
        self._made += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._made, action))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let time pass until `until()` is true; False when there was nothing more to do, or no more time."""
        queue = self._queue
        while queue and queue[0][0] <= limit_s:
            self.now_s, _, action = heapq.heappop(queue)
            self.events += 1
            action()
            if self.events % 16 == 0 and until():  # asking costs more than most actions
                return True
        return until()
