"""Another machine, as the head sees it: its agent at the end of a connection."""

from collections.abc import Callable, Mapping

from gradtide.launch.messages import Ended, Failure, Forward, Ready, Start
from gradtide.launch.nodes.door import Visitor
from gradtide.launch.nodes.node import Hear, NodeGone
from gradtide.launch.nodes.wire import (
    FROM_AGENT,
    HoldOutput,
    LeaveJob,
    NodeJoin,
    RoleEnded,
    StartRole,
    Wrote,
    encode,
    here,
)

__all__ = ["RemoteNode"]

_PART_S = 3.0


class RemoteNode:
    """Made when an agent has joined. `wrote` takes what its workers write, `role_ended` hears of other processes."""

    def __init__(
        self, visitor: Visitor, join: NodeJoin, wrote: Callable[[Wrote], None], role_ended: Callable[[RoleEnded], None]
    ) -> None:
        self.name, self.slots, self.cores = join.node, join.slots, join.cores
        self.ready = self.gone = False
        self.hear: Hear = lambda event: None  # the head says who hears it, once it has taken the node in
        self._visitor, self._wrote, self._role_ended = visitor, wrote, role_ended
        visitor.hear, visitor.lost = self._take, self._lost

    def start(self, rank: int, variables: Mapping[str, str]) -> None:
        self._visitor.tell(encode(Start(rank, dict(variables))))

    def start_role(self, name: str, arguments: tuple[str, ...]) -> None:
        self._visitor.tell(encode(StartRole(name, arguments)))

    def forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None:
        self._visitor.tell(encode(Forward(number, ranks, grace_s)))

    def hold(self, held: bool) -> None:
        """Its workers' output, since nobody reads ours; or no longer."""
        self._visitor.tell(encode(HoldOutput(held)))

    def _take(self, data: bytes) -> None:
        message = FROM_AGENT.decode(data)
        if isinstance(message, Wrote):
            self._wrote(message)
        elif isinstance(message, RoleEnded):
            self._role_ended(message)
        elif isinstance(message, Ended | Failure):
            self.hear(here(message))
        elif isinstance(message, Ready):
            self.ready = True
            self.hear(message)

    def _lost(self, why: str) -> None:
        self.gone = True
        self.hear(NodeGone(why))

    def kill(self) -> None:
        self._visitor.tell(encode(LeaveJob()))

    def close(self) -> None:
        if not self.gone:
            self.gone = True
            self._visitor.tell(encode(LeaveJob()))
            self._visitor.part(_PART_S)
