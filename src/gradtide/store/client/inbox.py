"""What a client does with what servers send: finds the memory that an answer belongs in, and tells the session."""

import time
from functools import partial
from typing import TYPE_CHECKING

from gradtide.errors import FrameError
from gradtide.store.client.links import ServerLink
from gradtide.store.wire.messages import (
    CutBegun,
    CutWritten,
    Initialised,
    Listed,
    Noted,
    Pulled,
    Pushed,
    Refused,
    Reply,
    decode_from,
)

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine

__all__ = ["Inbox"]

_REPLIES = (Initialised, Pushed, Pulled, Refused, Listed, Noted, CutBegun, CutWritten)


class Inbox:
    """Called by who receives, who holds `engine.reading` and not `engine.lock`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def attach(self, link: ServerLink) -> None:
        """From now on what arrives on this link comes here."""
        link.connection.on_messages(
            partial(self._begin, link), partial(self._filled, link), self._engine.lock, self._engine.fast.take
        )

    def _begin(self, link: ServerLink, data: memoryview) -> memoryview | None:
        message = decode_from(link.entry.name, data)
        if not isinstance(message, _REPLIES):
            raise FrameError(f"{link.entry.name} sent a client what belongs to others")
        if isinstance(message, Pushed | Pulled):
            targets = self._targets(message)
            if targets is not None:
                link.reply, link.targets = message, targets
                return self._filled(link)
            link.connection.skip_body()
        self._heard(link, message)
        return None

    def _targets(self, message: Pushed | Pulled) -> list[memoryview] | None:
        """Where the values of this answer go; None when nobody waits for it."""
        engine = self._engine
        with engine.turn as session:
            operation = session.operations.get(message.sequence)
            pending = engine.pending.get(message.sequence)
            if operation is None or pending is None or message.shard not in operation.unanswered:
                return None
            return pending.targets(message.shard) if operation.wants_values else None

    def _filled(self, link: ServerLink) -> memoryview | None:
        while link.targets:
            target = link.targets.pop()
            if target.nbytes:
                return target
        reply, link.reply = link.reply, None
        assert reply is not None
        self._heard(link, reply)
        return None

    def _heard(self, link: ServerLink, reply: Reply) -> None:
        engine = self._engine
        with engine.turn as session:
            engine.obey(session.receive(link.entry.name, reply, (), time.monotonic()))
