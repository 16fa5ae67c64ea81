"""The shell around membership.py: hears what peers say, tells them what it answers, and lets time go by.

What was decided is in the journal before anybody is told. A server whose connection closes is thought dead at once.
One of several coordinators has an office (election/), and only while it leads a Membership; else it says who leads.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gradtide.errors import CommunicationError, FrameError, OutputError, StoreError
from gradtide.events import ClockAligned
from gradtide.observe.bounded_log import BoundedLog
from gradtide.observe.clocks import own_clock
from gradtide.store.coordinator.chronicle import Chronicle
from gradtide.store.coordinator.clerk import Clerk, LateClerk
from gradtide.store.coordinator.election.errands import Errands
from gradtide.store.coordinator.election.office import Office
from gradtide.store.coordinator.election.register import Register
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.loss_policy import Recovery
from gradtide.store.coordinator.membership import WORKER_LEASE_S, Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import (
    Beat,
    CaughtUp,
    Inspect,
    Inspected,
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
_REACH_S = 10.0  # to reach the register at the start
_log = logging.getLogger("gradtide.coordinator")


class Coordinator:
    """The one process that says who is alive and which server holds which shard."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None = None,
        *,
        lease_s: float = 2.0,
        journal: Journal | Register | None = None,
        advertise: Callable[[Address], Address] = lambda listens: listens,
        recovery: Recovery | None = None,
        accept_loss: bool = False,
        worker_lease_s: float = WORKER_LEASE_S,
        log: BoundedLog | None = None,
    ) -> None:
        self._journal, self._log = journal, log
        if log is not None:
            log.observe(ClockAligned(own_clock(), own_clock(), 0.0, 0.0))
        self._lease_s, self._worker_lease_s = lease_s, worker_lease_s
        self._recovery, self._accept_loss = recovery or Recovery(), accept_loss
        credentials = credentials or Credentials()
        self._in_clear = credentials.insecure_network and not address.path
        listener = listen(address, credentials)
        self.address = address if address.path else replace(address, port=listener.getsockname()[1])
        self._service = Service(listener, credentials, "coordinator", self._greet, only_tls=address.tls)
        self._connections: dict[str, Connection] = {}  # by the name of the peer
        self._incarnations: dict[str, int] = {}  # of whoever has that connection
        self._chronicle = Chronicle()
        self._stopped = False
        self._gave_up: StoreError | None = None
        self._membership: Membership | None = None  # None: it stands by
        self._clerk: Clerk | LateClerk | None = None
        self._office: Office | None = None  # None: it is the only one
        if journal is None or isinstance(journal, Journal):
            record = journal.read() if journal is not None else None
            self._membership = self._begin(record, time.monotonic())
            self._clerk = Clerk(self._membership, journal.write if journal is not None else None)
        else:
            self._office = Office(str(advertise(self.address)), secrets.token_hex(16), self._begin)
            self._reach_by_s = time.monotonic() + _REACH_S  # the register, once
            self._errands = Errands(journal, self._service.wake)

    def _begin(self, record: Record | None, now_s: float) -> Membership:
        if record is None:
            membership = Membership(lease_s=self._lease_s)
        else:
            membership = Membership.restore(record, now_s, self._lease_s)
        membership.recover_by(self._recovery)
        membership.accept_loss = self._accept_loss
        membership.worker_lease_s = self._worker_lease_s
        return membership

    def run(self) -> None:
        """Until somebody calls `stop`, or until it finds that it has lost its journal."""
        if isinstance(self._clerk, Clerk):
            self._clerk.write()  # the new term
        next_tick_s = 0.0
        try:
            while not self._stopped:
                now_s = time.monotonic()
                if self._office is not None:
                    self._see_the_register(self._office, now_s)
                if now_s >= next_tick_s:
                    next_tick_s = now_s + _TICK_S
                    self._tick(now_s)
                self._service.run_once(max(0.0, next_tick_s - now_s))
        finally:
            self._close()
        if self._gave_up is not None:
            raise self._gave_up

    def _tick(self, now_s: float) -> None:
        membership = self._membership
        if membership is not None:
            self._tell(membership.tick(now_s))
            happened = self._chronicle.look(membership.peers, membership.table, membership.decree, now_s)
            if self._log is not None and happened:
                for event in happened:
                    self._log.observe(event)
                self._log.flush()

    def _close(self) -> None:
        self._service.close()
        if self._log is not None:
            self._log.close()
        if isinstance(self._journal, Journal):
            self._journal.close()
        elif self._journal is not None and self._office is not None:
            self._errands.close()
            if self._office.leadership.seat is not None:
                self._journal.resign(self._office.leadership.seat)

    # --- one of several ---

    def _see_the_register(self, office: Office, now_s: float) -> None:
        """What it has answered, and what to ask it."""
        led, was_unreachable = self._membership is not None, office.leadership.unreachable
        for question, answer in self._errands.take():
            for tell in office.answered(question, answer, time.monotonic()):
                self._send_to(tell)
        for question in office.questions(now_s):
            self._errands.ask(question)
        self._membership, self._clerk = office.membership, office.clerk
        unreachable = office.leadership.unreachable
        if unreachable and self._reach_by_s and now_s > self._reach_by_s:
            raise OutputError(unreachable)
        if office.leadership.reached:
            self._reach_by_s = 0.0
        if unreachable and not was_unreachable:
            _log.error(unreachable)
        elif was_unreachable and not unreachable:
            _log.error("etcd answers again")
        if (self._membership is not None) != led:
            self._change_sides(office)

    def _change_sides(self, office: Office) -> None:
        """It leads from now on, or no longer."""
        if self._membership is not None:
            _log.error("this coordinator leads, in term %d", self._membership.term)
            return
        _log.error("this coordinator does not lead any more")
        for connection in self._connections.values():
            if not connection.closed:
                self._send(connection, office.elsewhere)
        self._connections.clear()
        self._incarnations.clear()

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        connection.on_messages(lambda message: self._hear(connection, message), lambda: None)
        return lambda error: self._forget(connection)

    def _hear(self, connection: Connection, data: memoryview) -> None:
        message = decode_from(connection.peer, data)
        self._check(connection, message)
        if self._office is not None and not self._office.leads(time.monotonic()):
            if isinstance(message, Join | Beat | Inspect | Resize):
                self._send(connection, self._office.elsewhere)
            return
        try:
            self._act_on(connection, message)
        except FrameError:
            raise
        except Exception as error:  # no word of a peer ends this process
            _log.exception("what %s said could not be dealt with", connection.peer)
            raise FrameError(f"what {connection.peer} said could not be dealt with: {error}") from None

    def _check(self, connection: Connection, message: Message) -> None:
        """May this peer say this, in this name?"""
        known = self._membership.peers.get(getattr(message, "name", "")) if self._membership is not None else None
        is_server = known is not None and known.join.role == "server"
        check_rights(message, connection.identity.role, connection.identity.name, is_server=is_server)
        if isinstance(message, Join | Beat | Leave) and connection.peer not in (NEWCOMER, message.name):
            raise FrameError(f"{connection.peer} speaks for {message.name}, too; one connection is for one process")

    def _act_on(self, connection: Connection, message: Message) -> None:
        membership = self._membership
        assert membership is not None
        match message:
            case Inspect():
                self._send(connection, self._describe(membership, time.monotonic()))
                return
            case Resize():
                answer, told = membership.resize(message.servers)
                self._tell(told)
                self._send(connection, answer)
                return
            case Join() | Beat() | Leave():
                connection.peer = message.name
                self._answer(membership, connection, message)
                return
            case Promise() | CaughtUp() | Lagging():
                pass
            case _:
                raise FrameError(f"{connection.peer} sent a coordinator what belongs to a server")
        self._tell(self._decide(membership, message))

    def _answer(self, membership: Membership, connection: Connection, message: Join | Beat | Leave) -> None:
        """Whoever has the name is told by name; whoever says that it has is answered where it asked."""
        told = self._decide(membership, message)
        peer = membership.peers.get(message.name)
        if peer is not None and (accepted := _number_of(told, message)) == peer.join.incarnation:
            self._connections[message.name], self._incarnations[message.name] = connection, accepted
        mine = [tell for tell in told if tell.name == message.name and isinstance(tell.message, Welcome)]
        for tell in self._tellable(mine):
            self._send(connection, _stamped(tell.message))
        self._tell([tell for tell in told if tell not in mine])

    def _describe(self, membership: Membership, now_s: float) -> Inspected:
        chronicle = self._chronicle
        return msgspec.structs.replace(
            membership.describe(now_s), worries=self._worries(membership), happened=chronicle.told(now_s),
            failures=dict(chronicle.failures),
        )  # fmt: skip

    def _worries(self, membership: Membership) -> tuple[str, ...]:
        """What makes the store less safe than it could be, as far as it is this process's doing."""
        table, found = membership.table, []
        if self._clerk is not None and self._clerk.unwritten:
            found.append(self._clerk.unwritten)
        if self._journal is None and table is not None and table.replicas:
            found.append("the coordinator keeps no journal: if it dies, the store is lost; start it with --journal")
        if self._in_clear:
            found.append("what goes between machines may not be encrypted: it was started with --insecure-network")
        return tuple(found)

    def _decide(self, membership: Membership, message: Message) -> list[Tell]:
        try:
            return membership.hear(message, time.monotonic())
        except StoreError as error:
            self._gave_up = error
            self.stop()
            return []

    def _tellable(self, told: list[Tell]) -> list[Tell]:
        if self._office is not None:
            return self._office.tellable(told, time.monotonic())
        return self._clerk.tellable(told, time.monotonic()) if isinstance(self._clerk, Clerk) else []

    def _tell(self, told: list[Tell]) -> None:
        for tell in self._tellable(told):
            self._send_to(tell)

    def _send_to(self, tell: Tell) -> None:
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
            incarnation = self._incarnations.pop(name)
            at_once = self._office is None or self._office.was_here(time.monotonic())
            membership = self._membership
            self._tell(membership.lost(name, incarnation, at_once=at_once) if membership is not None else [])


def _stamped(message: Message) -> Message:
    """What answers a beat says what time it is here, so that whoever asked can compare clocks."""
    if isinstance(message, Welcome) and message.clock_s:
        return msgspec.structs.replace(message, at_s=time.monotonic(), clock=own_clock())
    return message


def _number_of(told: list[Tell], message: Join | Beat | Leave) -> int:
    """The incarnation that a peer was welcomed with, or has; 0 if it was refused."""
    for tell in told:
        if tell.name == message.name and isinstance(tell.message, Welcome):
            return tell.message.incarnation if tell.message.accepted else 0
    return message.incarnation
