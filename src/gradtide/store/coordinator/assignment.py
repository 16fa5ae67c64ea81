"""Who is primary of each shard and who follows it, when servers come and go: plain functions on tables. Pure.

Only a server of the journalled in-sync set ever follows a primary that died. A shard whose primary and all in-sync
replicas have been replaced by other processes is lost: it begins anew, and its clients are told.

A shard moves in the same way, with and without replicas: somebody more is brought up to date, and once it is in sync,
somebody who is leaving, or has the most to hold, is let go. Which shards move when a server comes is in shard_moves.py.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gradtide.store.wire.messages import ServerEntry, Table
from gradtide.store.wire.placement import deal

__all__ = ["Assignment", "Standing", "assign_first", "balance", "host_of", "promotable", "reassign", "without"]


_HERE = ("", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The part of a table that says who holds what."""

    owners: tuple[int, ...]
    backups: tuple[tuple[int, ...], ...] = ()
    joining: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()

    def emptied(self, leaving: frozenset[int]) -> frozenset[int]:
        """Of those who are leaving, who holds nothing any more."""
        return leaving.difference(self.owners, *self.backups, *self.joining) if leaving else leaving


@dataclass(frozen=True, slots=True)
class Standing:
    """What the coordinator knows about the servers of a table, by index."""

    alive: frozenset[int]
    replaced: frozenset[int] = frozenset()  # another process has the name now, and holds nothing
    lagging: frozenset[tuple[int, int]] = frozenset()  # (primary, replica): its primary can't reach it
    caught_up: frozenset[tuple[int, int]] = frozenset()  # (shard, replica): its primary says it has everything
    leaving: frozenset[int] = frozenset()  # to be let go as soon as others hold what they hold
    silent: frozenset[int] = frozenset()  # alive as far as is known, but overdue

    @property
    def staying(self) -> frozenset[int]:
        """Who lives and can be given something."""
        return self.alive - self.leaving


def assign_first(servers: Sequence[ServerEntry], replicas: int) -> Assignment:
    """The first table: shards in turn, their replicas on other servers, and on other machines if there are any."""
    owners = deal(len(servers))
    if not replicas:
        return Assignment(owners)
    hosts = tuple(host_of(server) for server in servers)
    backups = tuple(_neighbours(hosts, shard, owner)[:replicas] for shard, owner in enumerate(owners))
    return Assignment(owners, backups, ((),) * len(owners), (0,) * len(owners))


def _neighbours(hosts: tuple[str, ...], shard: int, owner: int) -> tuple[int, ...]:
    """The others, in an order that differs from shard to shard, so that a dead server's shards go to all of them."""
    others = len(hosts) - 1
    return _turn(hosts, owner, shard // len(hosts) % others if others else 0)


@lru_cache(maxsize=4096)
def _turn(hosts: tuple[str, ...], owner: int, first: int) -> tuple[int, ...]:
    count = len(hosts)
    turn = [(owner + 1 + (first + k) % (count - 1)) % count for k in range(count - 1)] if count > 1 else []
    return tuple(sorted(turn, key=lambda other: hosts[other] == hosts[owner]))


def host_of(server: ServerEntry) -> str:
    """The machine in an address like tcp:host:port; all UNIX sockets and loopback addresses are on one."""
    host = server.address.rpartition(":")[0].removeprefix("tcp:").removeprefix("tls:").strip("[]")
    is_here = server.address.startswith("unix:") or host in _HERE or host.startswith("127.")
    return "" if is_here else host


def promotable(backups: Collection[int], standing: Standing) -> list[int]:
    """Who may follow a primary: who was in sync, is heard of, and is still the same process."""
    return [i for i in backups if i in standing.alive - standing.silent and i not in standing.replaced]


def reassign(table: Table, servers: Sequence[ServerEntry], standing: Standing, epoch: int) -> Assignment:
    """The next assignment; equal to the table's when nothing has to change."""
    none: tuple[tuple[int, ...], ...] = ((),) * len(table.owners)
    next_ = _Draft(
        tuple(host_of(server) for server in servers), standing, table.replicas, epoch,
        list(table.owners), list(table.backups or none), list(table.joining or none),
        list(table.lost or (0,) * len(table.owners)),
    )  # fmt: skip
    changing = next_.changing()
    for shard in changing:
        next_.follow(shard)
    if changing:
        next_.count()
    for shard in changing:
        next_.release(shard)
        next_.fill(shard)
    if not table.replicas and not any(next_.joining):
        return Assignment(tuple(next_.owners), (), (), tuple(next_.lost) if any(next_.lost) else ())
    return Assignment(tuple(next_.owners), tuple(next_.backups), tuple(next_.joining), tuple(next_.lost))


def without(assignment: Assignment, gone: Collection[int], servers: int) -> Assignment:
    """The same when servers that hold nothing are no longer listed: the others have other numbers."""
    number = {old: new for new, old in enumerate(i for i in range(servers) if i not in gone)}

    def renumbered(held: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(number[i] for i in some) for some in held)

    owners = tuple(number[i] for i in assignment.owners)
    return Assignment(owners, renumbered(assignment.backups), renumbered(assignment.joining), assignment.lost)


@dataclass(slots=True)
class _Draft:
    """An assignment in the making."""

    hosts: tuple[str, ...]
    standing: Standing
    replicas: int
    epoch: int
    owners: list[int]
    backups: list[tuple[int, ...]]
    joining: list[tuple[int, ...]]
    lost: list[int]
    load: list[int] = field(default_factory=list)  # how many shards each server holds, or is about to
    _known: dict[object, tuple[int, tuple[int, ...], tuple[int, ...], bool]] = field(default_factory=dict)

    def changing(self) -> list[int]:
        """The shards for which something has to be decided: usually a few, and they are alike."""
        came = {shard for shard, _ in self.standing.caught_up}
        held = list(zip(self.owners, self.backups, self.joining, strict=True))
        unsettled = {some for some in set(held) if not self._stays(*some)}
        if not unsettled and not came:
            return []
        return [shard for shard, some in enumerate(held) if some in unsettled or shard in came]

    def _stays(self, owner: int, backups: tuple[int, ...], joining: tuple[int, ...]) -> bool:
        staying, held = self.standing.staying, {owner, *backups, *joining}
        reached = not any((owner, i) in self.standing.lagging for i in (*backups, *joining))
        enough = len(held) > self.replicas or held >= staying
        return held <= staying - self.standing.replaced and reached and enough

    def follow(self, shard: int) -> None:
        """Who is primary, who is in sync with it, and who still is on the way to be; the same for shards held alike."""
        came = tuple(i for i in self.joining[shard] if (shard, i) in self.standing.caught_up)
        held = (self.owners[shard], self.backups[shard], self.joining[shard], came)
        found = self._known.get(held)
        if found is None:
            found = self._decide(*held)
            if len(self.backups[shard]) < 2:  # else its heirs take turns
                self._known[held] = found
        self.owners[shard], self.backups[shard], self.joining[shard], gone = found
        if gone:
            self.lost[shard] = self.epoch

    def _decide(
        self, owner: int, backups: tuple[int, ...], joining: tuple[int, ...], came: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...], bool]:
        standing = self.standing
        owner, backups, gone = _follow(owner, backups, standing, self.owners)
        if owner in standing.alive:
            backups = _still(backups, owner, standing) + _reached(came, owner, standing)
        usable = _reached(tuple(i for i in joining if i not in standing.leaving), owner, standing)
        return owner, backups, tuple(i for i in usable if i not in backups and i != owner), gone

    def count(self) -> None:
        """Who holds how much, once it is known who follows whom."""
        self.load = [0] * len(self.hosts)
        alike = Counter(zip(self.owners, self.backups, self.joining, strict=True))
        for (owner, backups, joining), count in alike.items():
            for i in (owner, *backups, *joining):
                self.load[i] += count

    def release(self, shard: int) -> None:
        """Let go whom a shard no longer needs, because enough others are in sync."""
        if len(self.backups[shard]) <= self.replicas and not self.standing.leaving:
            return
        in_sync = (self.owners[shard], *self.backups[shard])
        if in_sync[0] not in self.standing.alive - self.standing.silent:
            return
        staying = tuple(i for i in in_sync if i not in self.standing.leaving)
        others = len(self.hosts) - len(self.standing.leaving)  # the dead are expected back
        if staying and len(staying) >= min(self.replicas + 1, others):
            came = {i for i in staying if (shard, i) in self.standing.caught_up}
            while len(staying) > self.replicas + 1:
                staying = self._without_one(staying, came)
            self._hold(shard, in_sync, staying)

    def _without_one(self, in_sync: tuple[int, ...], came: set[int]) -> tuple[int, ...]:
        """Not who has just come; else the fullest, but for the machines that the shard is on then."""

        def price(i: int) -> tuple[int, int]:
            return len({self.hosts[other] for other in in_sync if other != i}), self.load[i]

        spare = [i for i in in_sync if i not in came] or list(in_sync)
        let_go = max(spare, key=price)
        return tuple(i for i in in_sync if i != let_go)

    def _hold(self, shard: int, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        for i in set(before) - set(after):
            self.load[i] -= 1
        owner = before[0] if before[0] in after else min(after, key=lambda i: (self.owners.count(i), i))
        self.owners[shard] = owner
        self.backups[shard] = tuple(i for i in after if i != owner)

    def fill(self, shard: int) -> None:
        """New replicas where there are too few: on other machines first, on who holds least, in turn."""
        owner, held = self.owners[shard], (*self.backups[shard], *self.joining[shard])
        if len(held) >= self.replicas and not self.standing.leaving:
            return
        staying = [i for i in (owner, *held) if i not in self.standing.leaving]
        missing = self.replicas + 1 - len(staying)
        if missing > 0 and owner in self.standing.alive:
            turn = _neighbours(self.hosts, shard, owner)
            free = [i for i in turn if i in self.standing.staying and i not in held]
            free = [i for i in free if (owner, i) not in self.standing.lagging]
            near = {self.hosts[i] for i in staying}
            chosen = sorted(free, key=lambda i: (self.hosts[i] in near, self.load[i]))[:missing]
            self.joining[shard] += tuple(chosen)
            for i in chosen:
                self.load[i] += 1


def balance(table: Table, standing: Standing) -> Assignment | None:
    """Primaries shared out again among those who are in sync; None when that is not possible now, or not needed.

    Nothing is copied: a primary and its replica change places. Whatever the old primary had not had confirmed was not
    acknowledged, and its clients say it again to the new one.
    """
    whole = all(len(backups) == table.replicas for backups in set(table.backups))
    holders = set(table.owners).union(*set(table.backups))
    heard = standing.staying - standing.silent
    if not (table.replicas and whole and holders <= heard) or standing.replaced or standing.leaving:
        return None
    load = {i: table.owners.count(i) for i in standing.staying}
    if max(load.values()) - min(load.values()) <= len(table.owners) // 16:
        return None
    share = len(table.owners) / len(load)
    owners, backups = list(table.owners), list(table.backups)
    for shard, owner in enumerate(owners):
        heir = min(backups[shard], key=lambda i: load[i])
        if load[owner] > share and load[heir] < share:
            load[owner] -= 1
            load[heir] += 1
            owners[shard] = heir
            backups[shard] = tuple(owner if i == heir else i for i in backups[shard])
    found = Assignment(tuple(owners), tuple(backups), table.joining, table.lost)
    return found if found.owners != table.owners else None


def _follow(
    owner: int, backups: tuple[int, ...], standing: Standing, owners: Sequence[int]
) -> tuple[int, tuple[int, ...], bool]:
    """The primary of a shard, who is in sync with it, and whether the shard had to begin anew."""
    backups = tuple(i for i in backups if i not in standing.replaced)
    if owner in standing.alive and owner not in standing.replaced:
        return owner, backups, False
    heirs = promotable(backups, standing)
    if not heirs and owner in standing.replaced:
        heirs = list(backups)  # silent or given up, but the same processes still: one of them may come back
    if heirs:
        heir = min(heirs, key=lambda i: (owners.count(i), i)) if len(heirs) > 1 else heirs[0]
        return heir, tuple(i for i in backups if i != heir), False
    return owner, backups, owner in standing.replaced


def _still(backups: tuple[int, ...], owner: int, standing: Standing) -> tuple[int, ...]:
    """Who is in sync with a primary that lives: nobody waits for the dead, nor for whom it can't reach.

    A primary that is overdue may be dead itself. Then nobody is struck off for being silent too: he may be the one who
    still has everything, and while the primary is away nothing waits for him.
    """
    if owner not in standing.silent:
        return _reached(backups, owner, standing)
    return tuple(i for i in backups if i not in standing.replaced and (owner, i) not in standing.lagging)


def _reached(others: tuple[int, ...], owner: int, standing: Standing) -> tuple[int, ...]:
    """Of those whom a primary sends to, who lives and can be reached."""
    near = (i for i in others if i not in standing.replaced and (owner, i) not in standing.lagging)
    return tuple(i for i in near if i in standing.alive)
