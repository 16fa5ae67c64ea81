"""A store as plain data: servers, shards, lag, what is wrong, what has happened. No key of the job is in it."""

import time
from functools import lru_cache
from itertools import groupby
from typing import Any

from gradtide.observe.describe import describe
from gradtide.observe.event_log import KINDS
from gradtide.store.local.status import Status, complaints, notes
from gradtide.store.wire.messages import Happened, Table

__all__ = ["describe_store", "happenings", "unreachable"]

_ROUNDS = 8  # notes that are shown


def describe_store(address: str, status: Status) -> dict[str, Any]:
    """What `gradtide status` says, and who holds which shard."""
    told, table = status.coordinator, status.coordinator.table
    workers = [peer for peer in told.peers if peer.role == "worker"]
    found = notes(status)
    more = [f"and {len(found) - _ROUNDS} more"] if len(found) > _ROUNDS else []
    return {
        "address": address,
        "term": told.term,
        "epoch": table.epoch if table is not None else 0,
        "complaints": complaints(status),
        "notes": found[:_ROUNDS] + more,
        "servers": _servers(status, table) if table is not None else [],
        "shards": _shards(table) if table is not None else None,
        "workers": [{"worker": peer.worker, "alive": peer.alive} for peer in workers],
        "failures": told.failures,
    }


def unreachable(address: str, why: str) -> dict[str, Any]:
    """A store whose coordinator does not answer."""
    nothing = {"term": 0, "epoch": 0, "notes": [], "servers": [], "shards": None, "workers": [], "failures": {}}
    return {"address": address, "complaints": [f"the coordinator does not answer: {why}"], **nothing}


def _servers(status: Status, table: Table) -> list[dict[str, Any]]:
    peers, rows = {peer.name: peer for peer in status.coordinator.peers}, []
    for i, entry in enumerate(table.servers):
        peer, health = peers.get(entry.name), status.servers[entry.name]
        alive = peer is not None and peer.alive
        state = "dead" if not alive else "silent" if health is None else "lapsed" if health.lapsed else "alive"
        rows.append(
            {
                "name": entry.name,
                "state": "leaving" if state == "alive" and i in table.leaving else state,
                "primary": table.owners.count(i),
                "copies": sum(i in backups for backups in table.backups),
                "joining": sum(i in names for names in table.joining),
                "bytes": health.size_bytes if health else None,
                "lag": {name: lag for name, lag in sorted(health.lag.items()) if lag} if health else {},
                "held": health.held if health else 0,
            }
        )
    return rows


@lru_cache(maxsize=2)  # asked four times a second, and it hardly ever changes
def _shards(table: Table) -> dict[str, Any]:
    """Runs of neighbours that are alike: [count, primary, copies, copies in the making]."""
    nobody = ((),) * len(table.owners)
    alike = groupby(zip(table.owners, table.backups or nobody, table.joining or nobody, strict=True))
    runs = [[len(list(same)), owner, list(copies), list(joining)] for (owner, copies, joining), same in alike]
    return {"count": len(table.owners), "replicas": table.replicas, "runs": runs}


def happenings(status: Status, after: int, now_unix_s: float | None = None) -> tuple[int, list[dict[str, Any]]]:
    """What the coordinator has seen after that number, as lines of the timeline, and the last number."""
    now_s = time.time() if now_unix_s is None else now_unix_s
    found = [one for one in status.coordinator.happened if one.number > after]
    last = max([after, *(one.number for one in found)])
    return last, [_line(one, now_s) for one in found]


def _line(one: Happened, now_s: float) -> dict[str, Any]:
    told = describe(KINDS[one.event](**one.fields)) if one.event in KINDS else None
    kind, text = told or ("plain", one.event)
    return {"unix_s": round(now_s - one.ago_s, 3), "who": "coordinator", "kind": kind, "text": text}
