"""What a server tells while somebody watches: pushes that come and are answered, pulls, how far replicas are behind.

Nobody watches unless the server was given a log; then requests go the general way, where it is told of them.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gradtide.events import Emit, PullAnswered, PullAsked, PushAnswered, PushArriving, PushTaken, ReplicaLag
from gradtide.observe.clocks import ClockComparison
from gradtide.store.wire.messages import NO_WORKER, Pull, Pulled, Push, Pushed, Refused, Reply, Welcome

__all__ = ["ServerWatch"]

_MOST_OPEN = 4096  # requests that were not answered: of clients that are gone
_LOOK_S = 1.0


@dataclass(slots=True)
class _OpenRequest:
    request: Push | Pull
    parts: int  # that are not answered yet


class ServerWatch:
    """Told by the shell; tells workers' requests to `emit`."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self._asked: OrderedDict[tuple[str, int], _OpenRequest] = OrderedDict()
        self._lag: dict[str, int] = {}
        self._next_look_s = 0.0
        self._clocks = ClockComparison()

    def arriving(self, push: Push, parts: int) -> None:
        """Its values are about to be received."""
        if push.worker != NO_WORKER:
            self.emit(PushArriving(push.worker, push.sequence, push.round))
            self._expect(push, parts)

    def taken(self, push: Push, size_bytes: int) -> None:
        """They are all here."""
        if push.worker != NO_WORKER:
            self.emit(PushTaken(push.worker, push.sequence, push.round, size_bytes))

    def asked(self, pull: Pull, parts: int) -> None:
        if pull.worker != NO_WORKER:
            self.emit(PullAsked(pull.worker, pull.sequence, pull.round))
            self._expect(pull, parts)

    def answers(self, client: str, reply: Reply) -> None:
        """A part of a request is about to be answered; with the last, all of it is."""
        if not isinstance(reply, Pushed | Pulled | Refused):
            return
        asked = self._asked.get((client, reply.sequence))
        if asked is None:
            return
        asked.parts -= 1
        if isinstance(reply, Refused):  # it comes again
            del self._asked[client, reply.sequence]
        elif not asked.parts:
            del self._asked[client, reply.sequence]
            request = asked.request
            kind = PushAnswered if isinstance(request, Push) else PullAnswered
            self.emit(kind(request.worker, request.sequence, request.round))

    def welcomed(self, welcome: Welcome, now_s: float) -> None:
        """A beat is answered: what time it is at the coordinator's."""
        if welcome.clock:
            found = self._clocks.add(welcome.clock, welcome.clock_s, welcome.at_s, now_s)
            if found is not None:
                self.emit(found)

    def _expect(self, request: Push | Pull, parts: int) -> None:
        self._asked[request.client, request.sequence] = _OpenRequest(request, parts)
        if len(self._asked) > _MOST_OPEN:
            self._asked.popitem(last=False)

    def wants_lag(self, now_s: float) -> bool:
        """Whether it is time to look at the replicas."""
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + _LOOK_S
        return True

    def lags(self, lag: dict[str, int]) -> None:
        for replica, entries in lag.items():
            if self._lag.get(replica, 0) != entries:
                self.emit(ReplicaLag(replica, entries))
        self._lag = lag
