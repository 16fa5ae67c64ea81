"""Which shards move when a server has come, or comes back empty: plain functions on tables. Pure.

Nothing is decided about who is primary here: the shards that should move get one more replica, which is brought up to
date in the background. When it is in sync, assignment.py lets the fullest of the others go.
"""

from collections import Counter
from itertools import product

from gradtide.store.coordinator.assignment import Assignment, Standing, host_of
from gradtide.store.wire.messages import Table

__all__ = ["is_settled", "spread"]

_STRIDE = 619  # prime to the number of shards: neighbours, so the blocks of one key, go to different servers


def spread(table: Table, standing: Standing) -> Assignment | None:
    """The copies to be made so that all hold equally much, to within one; None when nothing is to be done now."""
    usable = sorted(standing.staying - standing.replaced)
    if standing.leaving or any(table.joining) or len(usable) < 2 or not _is_whole(table, len(usable)):
        return None
    backups = table.backups or ((),) * len(table.owners)
    alike = Counter(zip(table.owners, backups, strict=True)).items()
    load = {i: sum(count for (owner, others), count in alike if i in (owner, *others)) for i in usable}
    if max(load.values()) - min(load.values()) <= len(table.owners) // 16:
        return None
    held = [(owner, *others) for owner, others in zip(table.owners, backups, strict=True)]
    joining: list[tuple[int, ...]] = [()] * len(table.owners)
    hosts = tuple(host_of(server) for server in table.servers)
    least, rest = divmod(sum(load.values()), len(load))
    for enough in (least + (rest > 0), least):  # first from who has too many, then to who has too few
        for turn in range(len(table.owners)):
            shard = turn * _STRIDE % len(table.owners)
            taker = _taker(held[shard], load, hosts, enough) if not joining[shard] else None
            if taker is not None:
                joining[shard] = (taker,)
    lost = table.lost or (0,) * len(table.owners)
    return Assignment(table.owners, backups, tuple(joining), lost) if any(joining) else None


def _is_whole(table: Table, usable: int) -> bool:
    wanted = min(table.replicas, usable - 1)
    return min(map(len, table.backups), default=wanted) >= wanted


def _taker(holders: tuple[int, ...], load: dict[int, int], hosts: tuple[str, ...], enough: int) -> int | None:
    """Who has less than enough and should take this shard from a holder who has more; counts it as done."""
    if holders[0] not in load:
        return None  # there is nobody to copy from
    donors = sorted((i for i in holders if i in load), key=lambda i: -load[i])
    takers = sorted((i for i in load if i not in holders), key=lambda i: load[i])
    for donor, taker in product(donors, takers):
        others = {hosts[i] for i in holders if i != donor}
        spoils = hosts[taker] in others and hosts[donor] not in others  # two copies would be on one machine
        if load[taker] < enough < load[donor] and not spoils:
            load[donor] -= 1
            load[taker] += 1
            return taker
    return None


def is_settled(table: Table, living: frozenset[str]) -> bool:
    """Is everything where it is to stay: nobody leaves, nobody joins, and nothing is to be moved?"""
    alive = frozenset(i for i, server in enumerate(table.servers) if server.name in living)
    return not (table.leaving or any(table.joining)) and spread(table, Standing(alive)) is None
