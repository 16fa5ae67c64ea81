"""Who works together in a job that outlives its workers: pure decisions, which launcher.py carries out.

Every worker asks before it joins a group: when it starts, and again when a group broke or when it was told that
somebody comes or goes. The next generation of the group is decreed once all who live have asked. Survivors come first
in it, the furthest of them before all: its rank 0 knows where the job stands. Who is to go is not in it, unless it
keeps something for the others: then it is told again. Nor is who was added when nobody is left who knows. Who was added
is not waited for before it asks: the others work on. Where one of those who ask is in the middle of a batch, they go on
among themselves, and ask again when it is over: whoever comes could not know what the rest of the batch is.
"""

from dataclasses import dataclass, field

from gradtide.processes.job_protocol import Ask, Notice, Roster

__all__ = ["Members"]


@dataclass(slots=True)
class Members:
    """State only."""

    notice_s: float = 30.0  # after which it is said for whom the others wait
    patience_s: float = 1800.0  # how long the others wait for one that lives and does not ask; then it is ended
    generation: int = 0
    asking: dict[int, Ask] = field(default_factory=dict)  # by rank
    together: set[int] = field(default_factory=set)  # who lives of the last generation
    going: set[int] = field(default_factory=set)  # who is to go, and has not yet
    added: set[int] = field(default_factory=set)  # who was added to the job, and is not in a generation yet
    absent: set[int] = field(default_factory=set)  # who has no place to run at yet: the others work on without it
    noticed: Notice | None = None  # what the workers of this generation were told
    _since_s: float | None = None
    _told: bool = False  # for whom they wait

    def asked(self, ask: Ask, now_s: float) -> None:
        self.asking[ask.rank] = ask
        if self._since_s is None:
            self._since_s, self._told = now_s, False

    def gone(self, rank: int) -> None:
        """A worker ended; what it asked for is void."""
        self.asking.pop(rank, None)
        self.together.discard(rank)
        self.going.discard(rank)
        self.added.discard(rank)
        self.absent.discard(rank)
        if not self.asking:
            self._since_s = None

    def notice(self) -> Notice | None:
        """What those who work have to be told now: that somebody has come, or who is to go. Told once."""
        has_come = self.generation > 0 and any(ask.generation == 0 for ask in self.asking.values())
        notice = Notice(self.generation, tuple(sorted(self.going))) if has_come or self.going else None
        if notice == self.noticed:
            return None
        self.noticed = notice
        return notice

    def decree(self, living: set[int]) -> Roster | None:
        """The next generation, if everybody who lives has asked."""
        if not self.asking or self._awaited(living):
            return None
        busy = self._is_busy
        asking = {rank: ask for rank, ask in self.asking.items() if not busy or ask.generation}
        keepers = {rank for rank, ask in asking.items() if ask.keeps or busy}
        refused = (self.going - keepers) | (self.added if self._nobody_knows() else set())
        staying = [rank for rank in asking if rank not in refused]
        self.generation += 1
        self.going -= set(asking) - keepers
        self.added -= set(asking)
        ranks = sorted(staying, key=lambda rank: _place(asking[rank]))
        self.asking = {rank: ask for rank, ask in self.asking.items() if rank not in asking}
        self.together = set(ranks)
        self._since_s = self.noticed = None
        return Roster(self.generation, tuple(ranks), busy=busy)

    def stranded(self, living: set[int]) -> tuple[int, ...]:
        """Who was started again, and asks when all others who live have, of whom nobody knows where the job stands."""
        if self._awaited(living) or not self._nobody_knows():
            return ()
        return tuple(sorted(set(self.asking) - self.added - self.going))

    def orphaned(self, living: set[int]) -> tuple[int, ...]:
        """Who was added, and finds nobody but others who were."""
        if self._awaited(living) or not self._nobody_knows() or set(self.asking) - self.added:
            return ()
        return tuple(sorted(self.asking))

    def deadline_s(self) -> float | None:
        """When to call `slow` and `late`."""
        if self._since_s is None:
            return None
        return self._since_s + (self.patience_s if self._told else min(self.notice_s, self.patience_s))

    def slow(self, living: set[int], now_s: float) -> tuple[int, ...]:
        """Who has kept the others waiting for so long that it is said. Told once."""
        if self._since_s is None or self._told or now_s < self._since_s + self.notice_s:
            return ()
        self._told = True
        return self._awaited(living)

    def late(self, living: set[int], now_s: float) -> tuple[int, ...]:
        """Who has kept the others waiting for too long. Told once: whoever is started in its place gets as long."""
        if self._since_s is None or now_s < self._since_s + self.patience_s:
            return ()
        self._since_s, self._told = now_s, False
        return self._awaited(living)

    def _nobody_knows(self) -> bool:
        return self.generation > 0 and all(ask.generation == 0 for ask in self.asking.values())

    @property
    def _is_busy(self) -> bool:
        return any(ask.busy for ask in self.asking.values())

    def _awaited(self, living: set[int]) -> tuple[int, ...]:
        needed = living & self.together if self._is_busy else living
        return tuple(sorted(needed - set(self.asking) - self.added - self.absent))


def _place(ask: Ask) -> tuple[bool, int, int, int]:
    """Survivors first, and of them the furthest."""
    batches, steps = ask.done
    return ask.generation == 0, -batches, -steps, ask.rank
