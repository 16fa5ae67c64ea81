"""The shell around membership.py: hears what peers say, tells them what it answers, and lets time go by.

What was decided is in the journal before anybody is told. A server whose connection closes is thought dead at once.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gradtide.errors import CommunicationError, FrameError, StoreError
from gradtide.store.coordinator.clerk import Clerk
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.loss_policy import Recovery
from gradtide.store.coordinator.membership import WORKER_LEASE_S, Membership
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import (
    Beat,
    CaughtUp,
    Inspect,
    Join,
    Lagging,
    Leave,
    Message,
    Promise,
    Resize,
    Welcome,
    decode_from,
    encode,
)
from gradtide.store.wire.rights import check_rights
from gradtide.transport.authenticate import Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.keys import Credentials
from gradtide.transport.service import NEWCOMER, Service

__all__ = ["Coordinator"]

_TICK_S = 0.05
_log = logging.getLogger("gradtide.coordinator")


class Coordinator:
    """The one process that says who is alive and which server holds which shard."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None = None,
        *,
        lease_s: float = 2.0,
        journal: Journal | None = None,
        recovery: Recovery | None = None,
        accept_loss: bool = False,
        worker_lease_s: float = WORKER_LEASE_S,
    ) -> None:
        self._journal = journal
        record = journal.read() if journal is not None else None
        if record is None:
            self._membership = Membership(lease_s=lease_s)
        else:
            self._membership = Membership.restore(record, time.monotonic(), lease_s)
        self._membership.recover_by(recovery or Recovery())
        self._membership.accept_loss = accept_loss
        self._membership.worker_lease_s = worker_lease_s
        credentials = credentials or Credentials()
        self._in_clear = credentials.insecure_network and not address.path
        listener = listen(address, credentials)
        self.address = address if address.path else replace(address, port=listener.getsockname()[1])
        self._service = Service(listener, credentials, "coordinator", self._greet, only_tls=address.tls)
        self._connections: dict[str, Connection] = {}  # by the name of the peer
        self._incarnations: dict[str, int] = {}  # of whoever has that connection
        self._stopped = False
        self._gave_up: StoreError | None = None
        self._clerk = Clerk(self._membership, journal.write if journal is not None else None)

    def run(self) -> None:
        """Until somebody calls `stop`, or until it finds that it has lost its journal."""
        self._clerk.write()  # the new term
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._tell(self._membership.tick(now_s))
            self._service.run_once(max(0.0, next_tick_s - now_s))
        self._service.close()
        if self._journal is not None:
            self._journal.close()
        if self._gave_up is not None:
            raise self._gave_up

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        connection.on_messages(lambda message: self._hear(connection, message), lambda: None)
        return lambda error: self._forget(connection)

    def _hear(self, connection: Connection, data: memoryview) -> None:
        message = decode_from(connection.peer, data)
        self._check(connection, message)
        try:
            self._act_on(connection, message)
        except FrameError:
            raise
        except Exception as error:  # no word of a peer ends this process
            _log.exception("what %s said could not be dealt with", connection.peer)
            raise FrameError(f"what {connection.peer} said could not be dealt with: {error}") from None

    def _check(self, connection: Connection, message: Message) -> None:
        """May this peer say this, in this name?"""
        known = self._membership.peers.get(getattr(message, "name", ""))
        is_server = known is not None and known.join.role == "server"
        check_rights(message, connection.identity.role, connection.identity.name, is_server=is_server)
        if isinstance(message, Join | Beat | Leave) and connection.peer not in (NEWCOMER, message.name):
            raise FrameError(f"{connection.peer} speaks for {message.name}, too; one connection is for one process")

    def _act_on(self, connection: Connection, message: Message) -> None:
        match message:
            case Inspect():
                seen = msgspec.structs.replace(self._membership.describe(time.monotonic()), worries=self._worries())
                self._send(connection, seen)
                return
            case Resize():
                answer, told = self._membership.resize(message.servers)
                self._tell(told)
                self._send(connection, answer)
                return
            case Join() | Beat() | Leave():
                connection.peer = message.name
                self._answer(connection, message)
                return
            case Promise() | CaughtUp() | Lagging():
                pass
            case _:
                raise FrameError(f"{connection.peer} sent a coordinator what belongs to a server")
        self._tell(self._decide(message))

    def _answer(self, connection: Connection, message: Join | Beat | Leave) -> None:
        """Whoever has the name is told by name; whoever says that it has is answered where it asked."""
        told = self._decide(message)
        peer = self._membership.peers.get(message.name)
        if peer is not None and (accepted := _number_of(told, message)) == peer.join.incarnation:
            self._connections[message.name], self._incarnations[message.name] = connection, accepted
        mine = [tell for tell in told if tell.name == message.name and isinstance(tell.message, Welcome)]
        for tell in self._tellable(mine):
            self._send(connection, tell.message)
        self._tell([tell for tell in told if tell not in mine])

    def _worries(self) -> tuple[str, ...]:
        """What makes the store less safe than it could be, as far as it is this process's doing."""
        table, found = self._membership.table, []
        if self._clerk.unwritten:
            found.append(self._clerk.unwritten)
        if self._journal is None and table is not None and table.replicas:
            found.append("the coordinator keeps no journal: if it dies, the store is lost; start it with --journal")
        if self._in_clear:
            found.append("what goes between machines may not be encrypted: it was started with --insecure-network")
        return tuple(found)

    def _decide(self, message: Message) -> list[Tell]:
        try:
            return self._membership.hear(message, time.monotonic())
        except StoreError as error:
            self._gave_up = error
            self.stop()
            return []

    def _tellable(self, told: list[Tell]) -> list[Tell]:
        return self._clerk.tellable(told, time.monotonic())

    def _tell(self, told: list[Tell]) -> None:
        for tell in self._tellable(told):
            connection = self._connections.get(tell.name)
            if connection is not None and not connection.closed:
                self._send(connection, tell.message)

    def _send(self, connection: Connection, message: Message) -> None:
        try:
            connection.send(encode(message))
        except CommunicationError:
            return  # its socket will say so itself
        self._service.watch(connection)

    def _forget(self, connection: Connection) -> None:
        name = connection.peer
        if self._connections.get(name) is connection:
            del self._connections[name]
            self._tell(self._membership.lost(name, self._incarnations.pop(name)))


def _number_of(told: list[Tell], message: Join | Beat | Leave) -> int:
    """The incarnation that a peer was welcomed with, or has; 0 if it was refused."""
    for tell in told:
        if tell.name == message.name and isinstance(tell.message, Welcome):
            return tell.message.incarnation if tell.message.accepted else 0
    return message.incarnation
