"""What a client does with what servers send: finds the memory that an answer belongs in, and tells the session."""

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gradtide.errors import FrameError
from gradtide.store.links import Link
from gradtide.store.messages import (
    CutBegun,
    CutWritten,
    Initialised,
    Listed,
    Noted,
    Pulled,
    Pushed,
    Refused,
    Reply,
    decode,
)

if TYPE_CHECKING:
    from gradtide.store.engine import Engine

__all__ = ["Inbox"]

_REPLIES = (Initialised, Pushed, Pulled, Refused, Listed, Noted, CutBegun, CutWritten)


class Inbox:
    """Called by who receives, who holds `engine.reading` and not `engine.lock`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def attach(self, link: Link) -> None:
        """From now on what arrives on this link comes here."""
        link.connection.on_messages(
            partial(self._begin, link), partial(self._filled, link), self._engine.lock, partial(self._at_once, link)
        )

    def _at_once(self, link: Link, data: memoryview, body: memoryview) -> bool:
        """The answer to a push that went the short way, in one piece, as it nearly always is."""
        engine = self._engine
        lane = engine.quick
        if lane is None or len(body) != lane.size_bytes:
            return False
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            return False
        if type(message) is not Pushed or message.sequence != lane.sequence:
            return False
        with engine.lock:
            if engine.quick is not lane:
                return False
            lane.target[:] = body
            lane.done, engine.quick = True, None
            engine.session.quick_answered(message)
        return True

    def _begin(self, link: Link, data: memoryview) -> memoryview | None:
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            raise FrameError(f"{link.entry.name} sent something that is no message of the store") from None
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
        with engine.lock:
            engine.give_up_quick()
            operation = engine.session.operations.get(message.sequence)
            pending = engine.pending.get(message.sequence)
            if operation is None or pending is None or message.shard not in operation.unanswered:
                return None
            return pending.targets(message.shard) if operation.wants_values else None

    def _filled(self, link: Link) -> memoryview | None:
        while link.targets:
            target = link.targets.pop()
            if target.nbytes:
                return target
        reply, link.reply = link.reply, None
        assert reply is not None
        self._heard(link, reply)
        return None

    def _heard(self, link: Link, reply: Reply) -> None:
        engine = self._engine
        with engine.lock:
            engine.give_up_quick()
            engine.obey(engine.session.receive(link.entry.name, reply, (), time.monotonic()))
