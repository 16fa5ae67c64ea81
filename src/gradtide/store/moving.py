"""Which shards move when a server has come, or comes back empty: plain functions on tables. Pure.

Nothing is decided about who is primary here: the shards that should move get one more replica, which is brought up to
date in the background. When it is in sync, assignment.py lets the fullest of the others go.
"""

from gradtide.store.assignment import Assignment, Standing, host_of
from gradtide.store.messages import Table

__all__ = ["is_even", "spread"]

_STRIDE = 619  # prime to the number of shards: neighbours, so the blocks of one key, go to different servers


def spread(table: Table, standing: Standing) -> Assignment | None:
    """The copies to be made so that all hold equally much, to within one; None when nothing is to be done now."""
    usable = sorted(standing.staying - standing.replaced)
    if standing.leaving or any(table.joining) or len(usable) < 2 or not _is_whole(table, len(usable)):
        return None
    backups = table.backups or ((),) * len(table.owners)
    held = [(owner, *others) for owner, others in zip(table.owners, backups, strict=True)]
    load = {i: sum(i in some for some in held) for i in usable}
    if max(load.values()) - min(load.values()) <= len(table.owners) // 16:
        return None
    joining: list[tuple[int, ...]] = [()] * len(table.owners)
    hosts = tuple(host_of(server) for server in table.servers)
    for turn in range(len(table.owners)):
        shard = turn * _STRIDE % len(table.owners)
        taker = _taker(held[shard], load, hosts)
        if taker is not None:
            joining[shard] = (taker,)
    lost = table.lost or (0,) * len(table.owners)
    return Assignment(table.owners, backups, tuple(joining), lost) if any(joining) else None


def _is_whole(table: Table, usable: int) -> bool:
    wanted = min(table.replicas, usable - 1)
    return all(len(backups) >= wanted for backups in table.backups)


def _taker(holders: tuple[int, ...], load: dict[int, int], hosts: tuple[str, ...]) -> int | None:
    """Who should take this shard from the fullest of its holders, if that makes it more even; counts it as done."""
    donors, takers = [i for i in holders if i in load], [i for i in load if i not in holders]
    if holders[0] not in load or not takers:
        return None  # there is nobody to copy from, or nobody to copy to
    donor, taker = max(donors, key=lambda i: load[i]), min(takers, key=lambda i: load[i])
    others = {hosts[i] for i in holders if i != donor}
    if load[donor] - load[taker] < 2 or (hosts[taker] in others and hosts[donor] not in others):
        return None
    load[donor] -= 1
    load[taker] += 1
    return taker


def is_even(table: Table, living: frozenset[str]) -> bool:
    """Is everything where it is to stay: nobody leaves, nobody joins, and all who live hold about as much?"""
    held = {i: table.owners.count(i) for i, server in enumerate(table.servers) if server.name in living}
    for i in (i for backups in table.backups for i in backups if i in held):
        held[i] += 1
    uneven = max(held.values(), default=0) - min(held.values(), default=0)
    return not (table.leaving or any(table.joining)) and uneven <= len(table.owners) // 16
