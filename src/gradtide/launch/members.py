"""Who works together in a job that outlives its workers: pure decisions, which launcher.py carries out.

Every worker asks before it joins a group: when it starts, and again when a group broke. The next generation of the
group is decreed once all who live have asked. Survivors come first in it: its rank 0 knows where the job stands.
"""

from dataclasses import dataclass, field

from gradtide.decrees import Ask, Decree

__all__ = ["Members"]

PATIENCE_S = 60.0  # how long the others wait for one that lives and does not ask; then it is ended


@dataclass(slots=True)
class Members:
    """State only."""

    generation: int = 0
    asking: dict[int, Ask] = field(default_factory=dict)  # by rank
    _since_s: float | None = None

    def asked(self, ask: Ask, now_s: float) -> None:
        self.asking[ask.rank] = ask
        self._since_s = now_s if self._since_s is None else self._since_s

    def gone(self, rank: int) -> None:
        """A worker ended; what it asked for is void."""
        self.asking.pop(rank, None)
        if not self.asking:
            self._since_s = None

    def decree(self, living: set[int]) -> Decree | None:
        """The next generation, if everybody who lives has asked."""
        if not self.asking or living - set(self.asking):
            return None
        self.generation += 1
        ranks = sorted(self.asking, key=lambda rank: (self.asking[rank].generation == 0, rank))
        self.asking.clear()
        self._since_s = None
        return Decree(self.generation, tuple(ranks))

    def deadline_s(self) -> float | None:
        """When to call `late`."""
        return None if self._since_s is None else self._since_s + PATIENCE_S

    def late(self, living: set[int], now_s: float) -> tuple[int, ...]:
        """Who has kept the others waiting for too long."""
        deadline_s = self.deadline_s()
        if deadline_s is None or now_s < deadline_s:
            return ()
        return tuple(sorted(living - set(self.asking)))
