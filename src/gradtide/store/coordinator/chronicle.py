"""What has happened in a store, as events: seen by comparing what the coordinator knows now with what it knew. Pure.

It looks when the coordinator ticks, so that nothing is counted on anybody's way.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from gradtide.events import Event, FailedOver, MemberCame, MemberLost, MembersDecreed, ReplicasShort, ShardsLost
from gradtide.store.coordinator.peers import Peer
from gradtide.store.wire.messages import Decree, Happened, Table

__all__ = ["Chronicle"]

_KEPT = 128  # events; totals go on


class Chronicle:
    """Keeps the last events, and how many members were lost in all."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()  # by role
        self._kept: deque[tuple[int, float, Event]] = deque(maxlen=_KEPT)
        self._count = 0
        self._living: dict[str, tuple[str, int]] = {}  # by name: role, incarnation
        self._table: Table | None = None
        self._decree: Decree | None = None

    def look(self, peers: Mapping[str, Peer], table: Table | None, decree: Decree | None, now_s: float) -> list[Event]:
        """Notes what is not as it was, and returns it."""
        found = [*self._of_members(peers), *self._of_table(table), *self._of_decree(decree)]
        for event in found:
            if isinstance(event, MemberLost):
                self.failures[event.role] += 1
            self._count += 1
            self._kept.append((self._count, now_s, event))
        return found

    def told(self, now_s: float) -> tuple[Happened, ...]:
        """For who looks from outside: how long ago, since his clock may be another."""
        return tuple(
            Happened(number, now_s - at_s, type(event).__name__, asdict(event)) for number, at_s, event in self._kept
        )

    def _of_members(self, peers: Mapping[str, Peer]) -> Iterator[Event]:
        living: dict[str, tuple[str, int]] = {
            name: (peer.join.role, peer.join.incarnation)
            for name, peer in peers.items()
            if peer.alive and peer.heard and peer.join.role != "client"
        }
        before, self._living = self._living, living
        for name, (role, incarnation) in before.items():
            # One that said goodbye is forgotten, not dead; one that came again at once has died before.
            died = name in peers and not peers[name].alive and not peers[name].dismissed
            if died or (name in living and living[name][1] != incarnation):
                yield MemberLost(role, name)
        for name, (role, incarnation) in living.items():
            if name not in before or before[name][1] != incarnation:
                yield MemberCame(role, name)

    def _of_table(self, table: Table | None) -> Iterator[Event]:
        before, self._table = self._table, table
        if table is None or table is before or before is None:
            return
        for i, entry in enumerate(before.servers):
            moved = sum(
                was == i and table.servers[now].name != entry.name and bool(before.backups and before.backups[shard])
                for shard, (was, now) in enumerate(zip(before.owners, table.owners, strict=True))
            )
            if moved and i not in before.leaving and self._living.get(entry.name, ("", 0))[1] != entry.incarnation:
                yield FailedOver(entry.name, moved)
        if table.short_of_copies != before.short_of_copies:
            yield ReplicasShort(table.short_of_copies)
        known = before.lost or (0,) * len(table.lost)
        lost = sum(now > was for now, was in zip(table.lost, known, strict=True)) if table.lost else 0
        if lost:
            yield ShardsLost(lost)

    def _of_decree(self, decree: Decree | None) -> Iterator[Event]:
        before, self._decree = self._decree, decree
        if decree is None or decree is before:
            return
        workers = sorted({member.worker for member in decree.members})
        if before is None or workers != sorted({member.worker for member in before.members}):
            yield MembersDecreed(workers)
