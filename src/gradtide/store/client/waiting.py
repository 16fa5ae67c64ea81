"""A wait for the store's answer: for how long, whether those who must answer can be reached, and who is told of it."""

import sys
from typing import TYPE_CHECKING, Any

from gradtide.errors import PeerLost, PeerTimeout
from gradtide.store.wire.messages import ServerEntry

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine
    from gradtide.store.client.pending import Pending

__all__ = ["StoreWait"]


class StoreWait:
    """One thread's wait for one operation. Who lives may take long; who can't be reached has to come back soon."""

    def __init__(self, engine: "Engine", pending: "Pending[Any]", began_s: float, limit_s: float) -> None:
        self._engine, self._pending, self._limit_s = engine, pending, limit_s
        self._began_s = self._reached_s = began_s
        self._told = False

    def look_around(self, now_s: float) -> None:
        """Raises if it has lasted too long. After a while it says, once, who is waited for."""
        engine, pending, waited_s = self._engine, self._pending, now_s - self._began_s
        unreachable = self._unreachable()
        if not unreachable:
            self._reached_s = now_s
        elif now_s - self._reached_s >= engine.timeouts.lost_s:
            lost_s = f"{engine.timeouts.lost_s:g} s"
            raise PeerLost(f"{unreachable} can't be reached for {lost_s} during {pending.what}; is it still running?")
        if waited_s >= self._limit_s:
            raise PeerTimeout(f"{self._who_is_late()} did not answer {pending.what} within {self._limit_s:g} s")
        if not self._told and waited_s >= engine.timeouts.notice_s:
            self._told = True
            who = self._who_is_late()
            print(f"gradtide: {pending.what} has waited {waited_s:.3g} s for {who}", file=sys.stderr, flush=True)

    def _unreachable(self) -> str:
        """Who must answer and is not connected; nothing as long as somebody who must is."""
        with self._engine.lock:
            late = self._late()
            if any(self._engine.links.get(server.name) is not None for server in late):
                return ""
            if not late:
                return "" if self._engine.coordinator_is_there else f"the coordinator at {self._engine.address}"
        return _named(late)

    def _late(self) -> list[ServerEntry]:
        operation, table = self._engine.session.operations.get(self._pending.sequence), self._engine.session.table
        if operation is None or table is None:
            return []
        return [table.servers[flight.server] for flight in operation.flights.values() if flight.open]

    def _who_is_late(self) -> str:
        with self._engine.lock:
            late, operation = self._late(), self._engine.session.operations.get(self._pending.sequence)
            if operation is not None and operation.round and late:
                return f"the other workers of round {operation.round}, or {late[0].name} at {late[0].address},"
            return _named(late) or "nobody"


def _named(servers: list[ServerEntry]) -> str:
    return " and ".join(f"server {server.name} at {server.address}" for server in servers)
