"""A client's connections to the servers. Dialling may take seconds: it has threads of its own, and no lock then."""

import threading
import time
from collections.abc import Callable
from functools import partial

from gradtide.errors import CommunicationError
from gradtide.store.messages import Reply, ServerEntry
from gradtide.transport.authenticate import parse_address
from gradtide.transport.connection import Connection
from gradtide.transport.window import connect_sharing

__all__ = ["Link", "Links"]

_DIAL_AGAIN_S = 0.05


class Link:
    """One server's connection, and what is arriving on it."""

    def __init__(self, entry: ServerEntry, connection: Connection) -> None:
        self.entry, self.connection = entry, connection
        self.reply: Reply | None = None
        self.targets: list[memoryview] = []
        self.gone = False
        self.sending = False  # whether who receives also waits for room to send


class Links:
    """By server. All but `_dial` is called under the engine's lock."""

    def __init__(
        self,
        secret: bytes,
        connect_s: float,
        lock: threading.RLock,
        attach: Callable[[Link], None],
        opened: Callable[[str], None],
    ) -> None:
        self._secret, self._connect_s, self._lock = secret, connect_s, lock
        self._attach, self._opened = attach, opened
        self._open: dict[str, Link] = {}
        self._dialling: set[str] = set()
        self._again_s: dict[str, float] = {}  # server -> when to try again
        self._retired: list[Link] = []  # of servers that were started again
        self._closed = False

    def to(self, entry: ServerEntry) -> Link | None:
        """The open link; else it is being dialled, and `opened` will be called."""
        link = self._open.get(entry.name)
        if link is not None and link.entry is not entry:
            link = self._same_server(link, entry)
        if link is None and entry.name not in self._dialling and not self._closed:
            self._dialling.add(entry.name)
            threading.Thread(target=partial(self._dial, entry), name="gradtide-dial", daemon=True).start()
        return link

    def _same_server(self, link: Link, entry: ServerEntry) -> Link | None:
        if link.entry == entry:
            link.entry = entry
            return link
        link.connection.shut()  # an earlier incarnation of that server: who receives will see the end, and drop it
        self.remove(link)
        self._retired.append(link)
        return None

    def take_retired(self) -> list[Link]:
        """Links that nobody uses any more, for who receives to close."""
        retired, self._retired = self._retired, []
        return retired

    def all(self) -> list[Link]:
        return list(self._open.values())

    def get(self, name: str) -> Link | None:
        return self._open.get(name)

    def remove(self, link: Link) -> bool:
        """Whether it was the server's current one."""
        link.gone = True
        current = self._open.get(link.entry.name) is link
        if current:
            del self._open[link.entry.name]
        return current

    def due(self, now_s: float) -> list[str]:
        """The servers that could not be reached and should be tried again."""
        names = [name for name, at_s in self._again_s.items() if now_s >= at_s]
        for name in names:
            del self._again_s[name]
        return names

    def close(self) -> None:
        self._closed = True
        for link in self.all():
            self.remove(link)
            link.connection.close()
        for link in self.take_retired():
            link.connection.close()

    def _dial(self, entry: ServerEntry) -> None:
        try:
            peer = f"server {entry.name} at {entry.address}"
            address, enough = parse_address(entry.address), len(self._open)
            connection = connect_sharing(address, self._secret, "client", self._connect_s, peer, enough)
        except CommunicationError:
            with self._lock:
                self._dialling.discard(entry.name)
                self._again_s[entry.name] = time.monotonic() + _DIAL_AGAIN_S
            return
        link = Link(entry, connection)
        with self._lock:
            self._dialling.discard(entry.name)
            if self._closed:
                link.connection.close()
                return
            self._attach(link)
            self._open[entry.name] = link
            self._opened(entry.name)
