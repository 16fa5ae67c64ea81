"""A client's connections to the servers, dialled in the background."""

import threading
from collections.abc import Callable

from gradtide.store.wire.messages import Reply, ServerEntry
from gradtide.transport.authenticate import parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.dialer import Dialer, Heartbeat
from gradtide.transport.keys import Credentials
from gradtide.transport.shared_ring import connect_sharing

__all__ = ["Links", "ServerLink"]

_DIAL_AGAIN_S = 0.05


class ServerLink:
    """One server's connection, and what is arriving on it."""

    def __init__(self, entry: ServerEntry, connection: Connection) -> None:
        self.entry, self.connection = entry, connection
        self.reply: Reply | None = None
        self.targets: list[memoryview] = []
        self.heartbeat = Heartbeat(connection)
        self.gone = False
        self.sending = False  # whether who receives also waits for room to send


class Links:
    """By server. Its owner calls under the engine's lock."""

    def __init__(
        self,
        credentials: Credentials,
        connect_s: float,
        lock: threading.RLock,
        attach: Callable[[ServerLink], None],
        opened: Callable[[str], None],
    ) -> None:
        self._credentials, self._connect_s, self._lock = credentials, connect_s, lock
        self._attach, self._opened = attach, opened
        self._open: dict[str, ServerLink] = {}
        self._wanted: dict[str, ServerEntry] = {}  # by name: of a server that was started again, the last start
        self._dialer: Dialer[ServerEntry] = Dialer(self._dial, self._arrived, _DIAL_AGAIN_S)
        self._retired: list[ServerLink] = []  # of servers that were started again

    def to(self, entry: ServerEntry) -> ServerLink | None:
        """The open link; else it is being dialled, and `opened` will be called."""
        link = self._open.get(entry.name)
        if link is not None and link.entry is not entry:
            link = self._same_server(link, entry)
        if link is None:
            self._wanted[entry.name] = entry
            self._dialer.want(entry)
        return link

    def _same_server(self, link: ServerLink, entry: ServerEntry) -> ServerLink | None:
        if link.entry == entry:
            link.entry = entry
            return link
        link.connection.shut()  # an earlier incarnation of that server: who receives will see the end, and drop it
        self.remove(link)
        self._retired.append(link)
        return None

    def take_retired(self) -> list[ServerLink]:
        """Links that nobody uses any more, for who receives to close."""
        retired, self._retired = self._retired, []
        return retired

    def all(self) -> list[ServerLink]:
        return list(self._open.values())

    def get(self, name: str) -> ServerLink | None:
        return self._open.get(name)

    def remove(self, link: ServerLink) -> bool:
        """Whether it was the server's current one."""
        link.gone = True
        current = self._open.get(link.entry.name) is link
        if current:
            del self._open[link.entry.name]
        return current

    def due(self) -> list[str]:
        """The servers that could not be reached and should be tried again."""
        rested = self._dialer.rested()
        return [entry.name for entry in rested if entry.name not in self._open and self._is_wanted(entry)]

    def close(self) -> None:
        self._dialer.close()
        for link in self.all():
            self.remove(link)
            link.connection.close()
        for link in self.take_retired():
            link.connection.close()

    def abandon(self) -> None:
        """In a forked process."""
        self._dialer.abandon()
        for link in (*self._open.values(), *self._retired):
            link.gone = True
            link.connection.close()
        self._open.clear()

    # --- in the dialer's threads ---

    def _dial(self, entry: ServerEntry) -> Connection:
        peer = f"server {entry.name} at {entry.address}"
        address, enough = parse_address(entry.address), len(self._open)
        made = connect_sharing(address, self._credentials, "worker", self._connect_s, peer, enough)
        return made.expect("server", entry.name)

    def _arrived(self) -> None:
        with self._lock:
            for entry, connection in self._dialer.take():
                if not self._is_wanted(entry):
                    connection.close()
                    continue
                link = ServerLink(entry, connection)
                self._attach(link)
                self._open[entry.name] = link
                self._opened(entry.name)

    def _is_wanted(self, entry: ServerEntry) -> bool:
        return self._wanted.get(entry.name) == entry
