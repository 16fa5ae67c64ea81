"""A network that delays, reorders, drops, duplicates and cuts, by a seed."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gradtide.testing.simulator.clock import VirtualClock

__all__ = ["Faults", "Network"]


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is, until `heals_s`; afterwards it only delays."""

    drop: float = 0.0  # probability that a message is lost
    duplicate: float = 0.0  # probability that it comes twice
    mean_delay_s: float = 0.005
    cut: float = 0.0  # probability, at each message, that its pair of ends is cut
    cut_s: float = 0.5
    heals_s: float = 4.0
    late: float = 0.0  # probability that it comes once more, when nobody expects it any longer
    late_s: float = 6.0


class Network:
    """Carries messages between named ends. Each delay is drawn anew, so messages overtake each other."""

    def __init__(self, clock: VirtualClock, random: Random, faults: Faults) -> None:
        self.clock = clock
        self.random = random
        self.faults = faults
        self.on_cut: Callable[[str, str], None] = lambda source, target: None
        self.walls: list[tuple[str, str]] = []  # (from, to) that nothing passes; "" is everybody
        self._cut_until_s: dict[frozenset[str], float] = {}
        self._resets: dict[frozenset[str], int] = {}

    def reset(self, one: str, other: str) -> None:
        """What is on its way between them is lost."""
        pair = frozenset((one, other))
        self._resets[pair] = self._resets.get(pair, 0) + 1

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Call `deliver` at the other end some time, or never, or twice."""
        pair = frozenset((source, target))
        resets = self._resets.get(pair, 0)
        self._send(source, target, lambda: deliver() if self._resets.get(pair, 0) == resets else None)

    def _send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        faults, draw = self.faults, self.random.random
        if self.walls and any(a in ("", source) and b in ("", target) for a, b in self.walls):
            return
        if self.clock.now_s >= faults.heals_s:
            self.clock.after(self._delay_s(), deliver)
            return
        pair = frozenset((source, target))
        if self.clock.now_s < self._cut_until_s.get(pair, 0.0):
            return
        if faults.cut and draw() < faults.cut:
            self._cut_until_s[pair] = self.clock.now_s + draw() * faults.cut_s
            self.on_cut(source, target)
            return
        if draw() < faults.drop:
            return
        self.clock.after(self._delay_s(), deliver)
        if draw() < faults.duplicate:
            self.clock.after(self._delay_s() * 4, deliver)
        if faults.late and draw() < faults.late:
            self.clock.after(draw() * faults.late_s, deliver)

    def _delay_s(self) -> float:
        return self.random.expovariate(1.0 / self.faults.mean_delay_s)
