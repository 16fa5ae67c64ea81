"""The push that is under way on a client's fast path: its answer, and how it is left before that is there."""

import time
from typing import TYPE_CHECKING

import msgspec

from gradtide.store.client.fast.lane import Lane
from gradtide.store.wire.messages import Pushed, decode

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine

__all__ = ["ClientFastPath"]


class ClientFastPath:
    """At most one push is under way here, without the session's knowledge."""

    def __init__(self, engine: "Engine") -> None:
        self._engine, self._lock, self._saw = engine, engine.lock, engine.session.losses.saw
        self.lane: Lane | None = None  # whose push it is

    @property
    def is_idle(self) -> bool:
        return self.lane is None

    def take(self, data: memoryview, body: memoryview) -> bool:
        """Whether this is its answer, in one piece, as it nearly always is. Asked before the general way."""
        lane = self.lane
        if lane is None or len(body) != lane.size_bytes:
            return False
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError):
            return False
        if type(message) is not Pushed or message.sequence != lane.sequence:
            return False
        with self._lock:
            if self.lane is not lane:
                return False
            lane.target[:] = body
            lane.done, self.lane = True, None
            self._saw(message.shard, message.version)
        return True

    def leave(self) -> None:
        """Under `engine.lock`, before the session hears of anything else: the push becomes one like any other."""
        lane, self.lane = self.lane, None
        if lane is not None and not lane.done:
            pending = lane.hand_on(time.monotonic())
            self._engine.pending[pending.sequence] = pending
