"""An event loop for who listens: accepts, lets in who proves itself by the deadline, and moves bytes for all.

One thread, epoll. A socket that has not proven itself costs one entry and is dropped at the handshake deadline; when
descriptors run out, those that have waited longest go first. A peer that does not read what it asked for is not read
from either, so it can't make us hold more than a bound for it. Who is sent away is told why, as far as that is safe to
say, and so is the log.
"""

import logging
import os
import resource
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradtide.errors import CommunicationError
from gradtide.processes.wake import WakePipe
from gradtide.transport.authenticate import HANDSHAKE_S, Line, is_loopback, same_user, tune
from gradtide.transport.connection import MOST_RINGS, Connection, open_connection
from gradtide.transport.handshake import Handshake
from gradtide.transport.keys import Credentials
from gradtide.transport.spin import look_again
from gradtide.transport.tls import TlsListener

if TYPE_CHECKING:
    from gradtide.transport.shared_ring import SharedRing

__all__ = ["NEWCOMER", "Service"]

NEWCOMER = "a client"  # a peer that has not said what it is called

_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
_MOST_WAITING = 4096  # sockets that have not proven themselves
_MOST_QUEUED_BYTES = 64 << 20  # for one peer, beyond which it is not read from
_ACCEPT_AGAIN_S = 0.05
_MOST_AT_ONCE = 64  # messages, before the owner is asked whether it has anything else to do; some 4 ms
_TOLD_AGAIN_S = 60.0  # for which the log is not told again that somebody was refused for the same reason
_log = logging.getLogger("gradtide.transport")


@dataclass(slots=True)
class _Newcomer:
    sock: socket.socket
    handshake: Handshake
    where: str  # it comes from there; taken when it came, as it may have gone when we have to say it
    deadline_s: float
    memory: int = -1  # a descriptor that came with it

    def receive(self) -> bytes:
        if self.sock.family != socket.AF_UNIX:
            return self.sock.recv(4096)
        data, descriptors, _, _ = socket.recv_fds(self.sock, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        for descriptor in descriptors:
            self.forget_memory()
            self.memory = descriptor
        return data

    def open_ring(self) -> "SharedRing | None":
        """The memory that came with the handshake."""
        from gradtide.transport.shared_ring import open_ring  # which needs torch; a coordinator has none

        descriptor, self.memory = self.memory, -1
        return open_ring(descriptor)

    def forget_memory(self) -> None:
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1

    def close(self) -> None:
        self.sock.close()
        self.forget_memory()


@dataclass(slots=True)
class _Link:
    connection: Connection
    lost: Callable[[CommunicationError], None]
    interest: int = _IN


class Service:
    """Who listens. `greet(connection)` is called for each peer that proved itself; it returns whom to tell its end."""

    def __init__(
        self,
        listener: socket.socket,
        credentials: Credentials,
        role: str,
        greet: Callable[[Connection], Callable[[CommunicationError], None]],
        handshake_s: float = HANDSHAKE_S,
        only_tls: bool = False,
    ) -> None:
        self._listener, self._credentials, self._role = listener, credentials, role
        self._greet, self._handshake_s, self._only_tls = greet, handshake_s, only_tls
        self._tls = _tls_at(listener, credentials, only_tls)
        self._told_s: dict[str, float] = {}  # why somebody was refused, and when the log was told last
        self._newcomers: OrderedDict[int, _Newcomer] = OrderedDict()  # the first is the first to be late
        self._links: dict[int, _Link] = {}
        self._accept_at_s = 0.0  # 0: accepting
        self._lively = False  # whether a peer said something in the last turn, so that more may follow at once
        self.settled = 0  # its owner counts here: messages of this turn after which nothing else has to be seen to
        self._again = False  # whether that was all of them
        self._wake = WakePipe()
        self._epoll = select.epoll()
        self._epoll.register(listener, _IN)
        self._epoll.register(self._wake, _IN)
        listener.setblocking(False)
        _allow_many_descriptors()

    def fileno(self) -> int:
        """Readable when `run_once` would find something to do: for an owner with a loop of its own."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """From another thread or a signal: `run_once` returns soon."""
        self._wake.wake()

    def add(self, connection: Connection, lost: Callable[[CommunicationError], None]) -> None:
        """A connection that was opened from here, or whose peer has proven itself."""
        self._links[connection.fileno()] = _Link(connection, lost)
        self._epoll.register(connection.fileno(), _IN)

    def remove(self, connection: Connection) -> None:
        """Closes it, without a word to its owner."""
        number = connection.fileno()
        if self._links.pop(number, None) is not None:
            self._epoll.unregister(number)
            connection.close()

    def watch(self, connection: Connection) -> None:
        """To be called after something was sent: the rest leaves when the kernel has room."""
        link = self._links.get(connection.fileno())
        if link is not None:
            self._watch(link)

    def _watch(self, link: _Link) -> None:
        connection = link.connection
        interest = _IN
        if connection.can_flush:
            interest = _OUT if connection.queued_bytes > _MOST_QUEUED_BYTES else _IN | _OUT
        if interest != link.interest:
            link.interest = interest
            self._epoll.modify(connection.fileno(), interest)

    def run_once(self, timeout_s: float) -> None:
        """Waits for something to happen, at most so long, and deals with it."""
        if self._newcomers or self._accept_at_s:
            timeout_s = min(timeout_s, self._expire(time.monotonic()))
        poll = self._epoll.poll
        ready = look_again(poll) if self._lively else None
        self._deal_with(ready or poll(timeout_s))
        left = _MOST_AT_ONCE
        while self._again and left > 0:
            ready = look_again(poll)
            left -= len(ready)
            self._deal_with(ready)

    def _deal_with(self, ready: list[tuple[int, int]]) -> None:
        links, self._lively, self.settled = self._links, False, 0
        for number, events in ready:
            if number in links:
                self._lively = True
                self._move(number, links[number], events)
            elif number in self._newcomers:
                self._shake_hands(number)
            elif number == self._wake.fileno():
                self._wake.clear()
            elif number == self._listener.fileno():
                self._accept()
        self._again = self.settled == len(ready) > 0

    def _move(self, number: int, link: _Link, events: int) -> None:
        connection = link.connection
        try:
            if events & _OUT:
                connection.flush()
            if events & ~_OUT:
                connection.receive()
        except CommunicationError as error:
            self._drop(number, link, error)
            return
        if connection.can_flush or link.interest != _IN:
            self._watch(link)

    def _drop(self, number: int, link: _Link, error: CommunicationError) -> None:
        if self._links.get(number) is link:
            self.remove(link.connection)
        link.lost(error)

    # --- newcomers ---

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors, or the newcomer has gone already
                self._make_room()
                return
            if len(self._newcomers) >= _MOST_WAITING:
                self._turn_away(next(iter(self._newcomers)))
            if sock.family == socket.AF_UNIX and not same_user(sock):
                sock.close()
                continue
            sock.setblocking(False)
            tune(sock)
            number = sock.fileno()
            deadline = time.monotonic() + self._handshake_s
            where = "this machine" if sock.family == socket.AF_UNIX else str(address[0])
            self._newcomers[number] = _Newcomer(sock, self._handshake(sock), where, deadline)
            self._epoll.register(number, _IN)

    def _handshake(self, sock: socket.socket) -> Handshake:
        if sock.family == socket.AF_UNIX:
            return Handshake(self._credentials, self._role)
        near = self._credentials.insecure_network or is_loopback(str(sock.getsockname()[0]))
        return Handshake(self._credentials, self._role, self._tls, self._only_tls or not near)

    def _make_room(self) -> None:
        if self._newcomers:
            self._turn_away(next(iter(self._newcomers)))
        else:  # nobody to send away: look again a little later instead of spinning
            self._epoll.unregister(self._listener)
            self._accept_at_s = time.monotonic() + _ACCEPT_AGAIN_S

    def _turn_away(self, number: int) -> None:
        newcomer = self._newcomers.pop(number)
        self._epoll.unregister(number)
        newcomer.close()

    def _expire(self, now_s: float) -> float:
        """Sends away who is late; how long until the next one is."""
        if self._accept_at_s and now_s >= self._accept_at_s:
            self._epoll.register(self._listener, _IN)
            self._accept_at_s = 0.0
        while self._newcomers:
            number, newcomer = next(iter(self._newcomers.items()))
            if newcomer.deadline_s > now_s:
                return newcomer.deadline_s - now_s
            self._turn_away(number)
        return _ACCEPT_AGAIN_S if self._accept_at_s else 3600.0

    def _shake_hands(self, number: int) -> None:
        newcomer = self._newcomers[number]
        handshake = newcomer.handshake
        try:
            data, refused = newcomer.receive(), handshake.refusal
            answer = handshake.feed(data) if data else b""
            refuse = bool(handshake.refusal) and not refused
            if refuse:  # before it hears of it, so that who was refused finds the line in the log
                self._tell_refusal(newcomer, handshake.refusal)
            if not data or (answer and newcomer.sock.send(answer) != len(answer)):
                self._turn_away(number)
            elif refuse:
                newcomer.sock.shutdown(socket.SHUT_WR)  # closing could drop the answer; it goes when it has read that
        except CommunicationError as error:
            self._tell_refusal(newcomer, str(error))
            self._turn_away(number)
            return
        except OSError:
            self._turn_away(number)
            return
        if handshake.done:
            self._welcome(number, newcomer)

    def _tell_refusal(self, newcomer: _Newcomer, why: str) -> None:
        """Strangers must not fill the log."""
        now_s = time.monotonic()
        if now_s >= self._told_s.get(why, 0.0):
            self._told_s[why] = now_s + _TOLD_AGAIN_S
            _log.warning("refused %s from %s: %s", newcomer.handshake.says or "a newcomer", newcomer.where, why)

    def _welcome(self, number: int, newcomer: _Newcomer) -> None:
        del self._newcomers[number]
        self._epoll.unregister(number)
        handshake = newcomer.handshake
        connection = open_connection(Line(newcomer.sock, handshake.identity, handshake.tls), NEWCOMER)
        if newcomer.memory >= 0 and sum(link.connection.has_ring for link in self._links.values()) < MOST_RINGS:
            ring = newcomer.open_ring()
            if ring is not None:
                connection.use_ring(ring)
        newcomer.forget_memory()
        try:
            lost = self._greet(connection)
        except CommunicationError:  # it has gone again
            connection.close()
            return
        self.add(connection, lost)
        try:
            if handshake.rest:
                connection.feed(handshake.rest)
            self.watch(connection)
        except CommunicationError as error:
            self._drop(number, self._links[number], error)

    def close(self) -> None:
        for newcomer in self._newcomers.values():
            newcomer.close()
        for link in list(self._links.values()):
            link.connection.close()
        self._newcomers.clear()
        self._links.clear()
        self._epoll.close()
        self._listener.close()
        self._wake.close()


def _tls_at(listener: socket.socket, credentials: Credentials, only_tls: bool) -> TlsListener | None:
    """For who comes encrypted: nobody does on a UNIX socket, nor by itself to where only this machine gets."""
    if listener.family == socket.AF_UNIX:
        return None
    if only_tls or credentials.certificate or not is_loopback(str(listener.getsockname()[0])):
        return TlsListener(credentials.certificate, credentials.certificate_key)
    return None


def _allow_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
