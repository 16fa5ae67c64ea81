"""The processes that a coordinator knows, and what it sends them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradtide.store.wire.messages import Join, Message

__all__ = ["Peer", "Tell", "tell_all"]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a peer."""

    name: str
    message: Message


@dataclass(slots=True)
class Peer:
    """A process that has joined."""

    join: Join
    heard_s: float
    alive: bool = True
    heard: bool = True  # False: known from the journal only
    words: int = 0  # beats that were heard
    connected: bool = True  # a client whose connection was closed may open another
    dismissed: bool = False  # a server whose shards are all elsewhere, and that may go


def tell_all(peers: Iterable[Peer], message: Message) -> list[Tell]:
    """Servers first: a worker that knows a decree finds that its shards do too, or soon will."""
    alive = [peer.join for peer in peers if peer.alive]
    return [Tell(join.name, message) for join in sorted(alive, key=lambda join: join.role != "server")]
