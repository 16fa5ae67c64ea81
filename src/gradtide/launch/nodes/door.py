"""Where agents and workers come in at the head: each has proven that it knows the job's secret, and is asked several
times a lease whether it is still there. One whose connection closes, or who does not answer for a lease, is lost."""

import contextlib
import selectors
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gradtide.errors import CommunicationError, FrameError, PeerLost
from gradtide.launch.nodes.node import CLOSED
from gradtide.transport.authenticate import Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.dialer import Heartbeat
from gradtide.transport.keys import Credentials
from gradtide.transport.service import Service

__all__ = ["Door", "Visitor"]

_KEPT_BYTES = 1 << 20  # of what agents have said, beyond which they are asked to hold their workers' output


class Visitor:
    """One who came in. Whoever greets it says who hears it (`hear`) and who is told of its end (`lost`)."""

    def __init__(self, connection: Connection, service: Service) -> None:
        self.role = connection.identity.role
        self.hear: Callable[[bytes], None] = lambda message: None
        self.lost: Callable[[str], None] = lambda why: None
        self.patient = False  # whether it may take its time to answer
        self.heartbeat = Heartbeat(connection)
        self._connection, self._service = connection, service

    def name(self, name: str) -> None:
        """How it is called from now on when something is said of it."""
        self._connection.peer = name

    def tell(self, message: bytes) -> None:
        """Never waits; who is gone will be noticed."""
        with contextlib.suppress(CommunicationError):
            self._connection.send(message)
            self._service.watch(self._connection)

    def ping(self) -> None:
        with contextlib.suppress(CommunicationError):
            self._connection.ping()
            self._service.watch(self._connection)

    def hang_up(self) -> None:
        """Without a word to `lost`."""
        with contextlib.suppress(CommunicationError):
            self._connection.flush()
        self._service.remove(self._connection)

    def part(self, timeout_s: float) -> None:
        """The same, once it has read all that it was told and hung up itself; or after this time."""
        self._connection.part(timeout_s)


class Door:
    """Of one head. `greet(visitor)` is called for each who comes in."""

    def __init__(
        self, address: Address, credentials: Credentials, greet: Callable[[Visitor], None], lease_s: float
    ) -> None:
        listener = listen(address, credentials)
        self.address = address if address.path else replace(address, port=listener.getsockname()[1])
        self.lease_s = lease_s
        self._greet_visitor = greet
        self._visitors: dict[int, Visitor] = {}  # by number, in the order they came
        self._service = Service(listener, credentials, "head", self._greet, only_tls=address.tls)
        self._next_s = 0.0
        self.hold: Callable[[bool], None] = lambda held: None  # asks agents to keep their output to themselves, or not
        self._later: deque[tuple[Visitor, bytes | str]] = deque()  # what agents said, or why they were lost
        self._kept_bytes, self._held, self._receives = 0, False, False

    def watch(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._service, selectors.EVENT_READ, self.turn)

    def turn(self) -> None:
        """Deals with what has come, without waiting."""
        self._take_in()
        self.settle()

    def settle(self) -> None:
        """Deals with what was said. Whoever hears it may be held up by his own reader: then he calls `beat`."""
        while self._later:
            visitor, said = self._later.popleft()
            if isinstance(said, str):
                visitor.lost(said)
                continue
            self._kept_bytes -= len(said)
            try:
                _hear(visitor, said)
            except FrameError as error:
                visitor.hang_up()
                self._lose(visitor, str(error))
        if self._held:
            self._held = False
            self.hold(False)

    def _take_in(self) -> None:
        """Workers are answered at once, since they end without; what agents say is for `settle`."""
        self._receives = True
        try:
            self._service.run_once(0.0)
        finally:
            self._receives = False

    def look(self) -> None:
        """To be called at least eight times a lease: asks the quiet, and gives up who does not answer."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self.lease_s / 10
        self.turn()
        for visitor in list(self._visitors.values()):
            if visitor.heartbeat.is_lost(now_s, self.lease_s) and not visitor.patient:
                visitor.hang_up()
                self._lose(visitor, f"it has not answered for {self.lease_s:g} s")
        self.settle()

    def patience_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def beat(self) -> None:
        """While this end is held up by somebody who does not read: says to all that it lives, and takes in what they
        say, or kernels would give up the connections."""
        for visitor in list(self._visitors.values()):
            visitor.ping()
        if not self._receives:
            self._take_in()
        if self._kept_bytes > _KEPT_BYTES and not self._held:
            self._held = True
            self.hold(True)

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        visitor = Visitor(connection, self._service)
        number = connection.fileno()
        self._visitors[number] = visitor
        connection.on_messages(lambda message: self._said(visitor, bytes(message)), lambda: None)
        self._greet_visitor(visitor)
        return lambda error: self._lose(visitor, _why(error))

    def _said(self, visitor: Visitor, message: bytes) -> None:
        if visitor.role == "worker":
            _hear(visitor, message)
        else:
            self._kept_bytes += len(message)
            self._later.append((visitor, message))

    def _lose(self, visitor: Visitor, why: str) -> None:
        number = next((number for number, other in self._visitors.items() if other is visitor), None)
        if number is not None:
            del self._visitors[number]
            self._later.append((visitor, why))

    def forget(self, visitor: Visitor) -> None:
        """Hangs up on it; nobody is told."""
        self._visitors = {number: other for number, other in self._visitors.items() if other is not visitor}
        visitor.hang_up()

    def close(self) -> None:
        self._visitors.clear()
        self._service.close()


def _hear(visitor: Visitor, message: bytes) -> None:
    try:
        visitor.hear(message)
    except msgspec.MsgspecError as error:
        raise FrameError(f"a {visitor.role} said what no {visitor.role} says ({error})") from None


def _why(error: CommunicationError) -> str:
    """Whether the process at the other end closed it, by its own end for example, or the wire is to blame."""
    if not isinstance(error, PeerLost):
        return str(error)
    return CLOSED if "it closed the connection" in str(error) else "its connection broke"
