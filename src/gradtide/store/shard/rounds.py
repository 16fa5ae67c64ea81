"""The rounds of one block: contributions wait here until everybody who is waited for has come by.

A worker has **come by** round r when it pushed for r or a later round, or pulled for a step after r. A round closes
when every member has come by; it holds the contributions that were pushed for it, in worker order, whatever the
order of arrival. So a worker that skips a key in one step holds nobody up, and bsp is bounded:0: one code path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gradtide.store.rules.arithmetic import Arguments, BlockState, Contribution
from gradtide.store.wire.messages import Created, KeySpec, Member, Updated

__all__ = ["EARLY_ROUNDS", "REMEMBERED_ROUNDS", "Block", "Closing"]

V = TypeVar("V")

# A worker may be this many rounds beyond what its delay allows before its pushes are told to come back later: it
# bounds what waits in memory. A worker that pulls before each step is never beyond.
EARLY_ROUNDS = 8
# For so many closed rounds a block remembers who was in them, so that a restarted worker counts once.
REMEMBERED_ROUNDS = 64


@dataclass(slots=True)
class Block(Generic[V]):
    """One block of a key: its value, and the rounds that are open."""

    spec: KeySpec
    elements: int
    size_bytes: int
    digest: bytes  # of the initial value
    state: BlockState[V]
    closed: int = 0  # every round up to this one is closed
    open: dict[int, dict[int, Contribution[V]]] = field(default_factory=dict)  # round -> worker -> contribution
    reached: dict[int, int] = field(default_factory=dict)  # worker -> the last round it has come by
    came: dict[int, int] = field(default_factory=dict)  # the same, of those who came without a push: replicas know it
    counted: dict[int, frozenset[int]] = field(default_factory=dict)  # closed round -> who was in it
    changes: list[tuple[int, Arguments]] = field(default_factory=list)  # (from round, what)

    @property
    def delay(self) -> int:
        assert self.spec.delay is not None
        return self.spec.delay

    def created(self, number: int) -> Created:
        """What a replica must know to have this block too."""
        return Created(self.spec, number, self.elements, self.size_bytes, self.digest)

    def may_start(self, step: int) -> bool:
        """May a worker begin this step with the value as it is?"""
        return self.spec.delay is None or self.closed >= step - 1 - self.spec.delay

    def given(self, step: int) -> int:
        """The round after which a worker that begins this step is given the values of a compressed key."""
        return step - 1 - self.delay

    def seen(self, step: int) -> int:
        """The last round that is in what a worker is given for this step."""
        published = self.state.published
        return self.closed if published is None or not step else min(self.closed, published.seen(self.given(step)))

    def is_too_early(self, round_: int, worker: int) -> bool:
        """Would this contribution wait in memory beyond its bound? Rounds that nobody pushed for hold nothing."""
        held = sum(worker in slots for slots in self.open.values())
        return held > self.delay + EARLY_ROUNDS and worker not in self.open.get(round_, ())

    def has_counted(self, round_: int, worker: int) -> bool:
        """Is this worker's contribution to a closed round in the value?"""
        return worker in self.counted.get(round_, ())

    def contribute(self, round_: int, worker: int, contribution: Contribution[V]) -> None:
        """Take a contribution; a second one for the same slot is the same one."""
        self.come_by(worker, round_)
        self.open.setdefault(round_, {}).setdefault(worker, contribution)

    def come_by(self, worker: int, round_: int) -> bool:
        """A worker will push nothing more up to this round. Returns whether that is news."""
        news = round_ > self.reached.get(worker, 0)
        if news:
            self.reached[worker] = round_
        return news

    def come_by_without_push(self, worker: int, round_: int) -> bool:
        """The same, by a pull of a later step. Returns whether that is news."""
        news = self.come_by(worker, round_)
        if news:
            self.came[worker] = round_
        return news

    def waited_for(self, members: Mapping[int, Member]) -> tuple[int, tuple[int, ...]] | None:
        """The first round that is open though somebody has pushed for it, and who has not come by."""
        if not self.open:
            return None
        first = min(self.open)
        late = [m.worker for m in members.values() if m.is_in(first) and self.reached.get(m.worker, 0) < first]
        return first, tuple(sorted(late))

    @property
    def begun(self) -> int:
        """The last round that anybody here has had to do with."""
        return max(self.closed, max(self.reached.values(), default=0))

    def close_ready(self, members: Mapping[int, Member], ceiling: int | None) -> "Closing[V]":
        """Close every round that all have come by."""
        frontier = self.frontier(members, ceiling)
        ready = sorted(round_ for round_ in self.open if round_ <= frontier)
        closing = Closing([self._close(round_) for round_ in ready])
        if frontier > self.closed:
            closing.beyond = frontier > max(ready, default=0)
            self.end(frontier)
        return closing

    def end(self, round_: int) -> None:
        """Every round up to this one is closed."""
        self.closed = round_
        self._publish(round_)

    def _publish(self, round_: int) -> None:
        published = self.state.published
        if published is not None:
            published.close(round_)

    def retain(self, workers: Iterable[int]) -> None:
        """Forget how far those who left had come."""
        staying = set(workers)
        self.reached = {worker: round_ for worker, round_ in self.reached.items() if worker in staying}
        self.came = {worker: round_ for worker, round_ in self.came.items() if worker in staying}

    def configure(self, changes: Arguments, from_round: int) -> None:
        """Change the rule's arguments from a round on; 0 means at once."""
        if from_round == 0:
            self.state.configure(changes)
        else:
            self.changes.append((from_round, changes))
            self.changes.sort(key=lambda change: change[0])

    def frontier(self, members: Mapping[int, Member], ceiling: int | None) -> int:
        """The last round that all have come by."""
        reached = {m.worker: max(self.reached.get(m.worker, 0), m.from_round - 1) for m in members.values()}
        waited = [reached[m.worker] for m in members.values() if m.is_in(reached[m.worker] + 1)]
        # If all have left, or will not come again: what they pushed still counts.
        come_by = min(waited) if waited else max([*reached.values(), *self.open], default=self.closed)
        return come_by if ceiling is None else min(come_by, ceiling - 1)

    def _close(self, round_: int) -> tuple[int, V, tuple[int, ...]]:
        slots = self.open.pop(round_)
        workers = tuple(sorted(slots))
        self._publish(round_ - 1)
        combined = self._combine(round_, [slots[worker] for worker in workers])
        self.state.apply(combined)
        self._publish(round_)
        self._note(round_, workers)
        return round_, combined, workers

    def _combine(self, round_: int, in_order: list[Contribution[V]]) -> V:
        self._take_changes(round_)
        return self.state.combine(in_order)

    def _take_changes(self, round_: int) -> None:
        while self.changes and self.changes[0][0] <= round_:
            self.state.configure(self.changes.pop(0)[1])

    def _note(self, round_: int, workers: Iterable[int]) -> None:
        self.counted[round_] = frozenset(workers)
        if len(self.counted) > REMEMBERED_ROUNDS:
            del self.counted[next(iter(self.counted))]

    # --- as a replica ---

    def replay(self, step: Updated, combined: V) -> None:
        """The update that the primary made."""
        if step.round:
            self._publish(step.round - 1)
            self._take_changes(step.round)
        self.state.apply(combined)
        if step.round:
            self._note(step.round, step.workers)
            self.end(step.round)

    def forget_what_is_open(self) -> None:
        """Contributions to open rounds are the primary's alone; who pushed them will push them again."""
        self.open.clear()
        self.reached = dict(self.came)


@dataclass(slots=True)
class Closing(Generic[V]):
    """What closed: each round with its combined contributions and whose they were."""

    rounds: list[tuple[int, V, tuple[int, ...]]]
    beyond: bool = False  # the block is closed up to a round that nobody pushed for
