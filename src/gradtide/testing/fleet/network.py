"""Who reaches whom: messages arrive in order, some of them late; a cut wire says nothing to either end."""

from collections import deque
from collections.abc import Callable
from random import Random

from gradtide.testing.simulator.clock import VirtualClock

__all__ = ["HEAD", "OneWay", "Wires"]

_AGAIN_S = 0.2
_GIVEN_UP_S = 5.0
HEAD = -1  # as a place; others are nodes by number


class Wires:
    """Places that are cut off reach only those that were cut off with them."""

    def __init__(self, clock: VirtualClock, draw: Random) -> None:
        self.clock, self._draw = clock, draw
        self._island: dict[int, int] = {}  # of a place that is cut off, which; the others are together
        self.stalled: dict[int, float] = {}  # until when a node stands still
        self.slow: dict[int, float] = {}  # how much later everything to and from a node comes

    def cut(self, island: int, places: tuple[int, ...]) -> None:
        for place in places:
            self._island[place] = island

    def mend(self, places: tuple[int, ...]) -> None:
        for place in places:
            self._island.pop(place, None)

    @property
    def is_whole(self) -> bool:
        return not self._island

    def reaches(self, one: int, other: int) -> bool:
        return one == other or self._island.get(one) == self._island.get(other)

    def delay_s(self, one: int, other: int) -> float:
        late_s = self._draw.random() * 0.8 if self._draw.random() < 0.01 else 0.0
        return 0.0005 + self._draw.random() * 0.01 + late_s + self.slow.get(one, 0.0) + self.slow.get(other, 0.0)

    def awake_at_s(self, place: int) -> float:
        return max(self.clock.now_s, self.stalled.get(place, 0.0))


class OneWay:
    """One way of a connection: in order. What is lost on a cut wire is sent again, until a kernel gives it up."""

    def __init__(self, wires: Wires, source: int, target: int, arrive: Callable[[bytes], None]) -> None:
        self._wires, self._source, self._target, self._arrive = wires, source, target, arrive
        self._waiting: deque[tuple[float, bytes]] = deque()  # when each was sent
        self._last_s = 0.0
        self._broken = False

    def send(self, message: bytes) -> None:
        wires = self._wires
        if self._broken:
            return
        self._last_s = max(self._last_s, wires.clock.now_s + wires.delay_s(self._source, self._target))
        self._waiting.append((wires.clock.now_s, message))
        wires.clock.after(self._last_s - wires.clock.now_s, self._deliver)

    def _deliver(self) -> None:
        """The first that waits: there is one call of this for each."""
        wires = self._wires
        now_s, sent_s = wires.clock.now_s, self._waiting[0][0] if self._waiting else 0.0
        if self._broken or not self._waiting:
            return
        if not wires.reaches(self._source, self._target):
            self._broken = now_s - sent_s > _GIVEN_UP_S
            wires.clock.after(_AGAIN_S, self._deliver)
        elif (awake_s := wires.awake_at_s(self._target)) > now_s:
            wires.clock.after(awake_s - now_s, self._deliver)
        else:
            self._arrive(self._waiting.popleft()[1])
