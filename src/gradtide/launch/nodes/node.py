"""What the head wants of a node: this machine, or another with an agent on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gradtide.launch.messages import Event

__all__ = ["CLOSED", "Guest", "Hear", "JobNode", "NodeGone"]

CLOSED = "its connection closed"  # why somebody is lost whose process closed it, by its own end for example


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node can't be reached any more, and so none of its workers: it, or its fork server, is dead, or cut off."""

    why: str


Hear = Callable[[Event | NodeGone], None]


class Guest(Protocol):
    """A process at the end of a connection that has proven itself. Neither `tell` nor `hang_up` waits or raises."""

    hear: Callable[[bytes], None]  # who hears what it says
    lost: Callable[[str], None]  # who is told of its end, and why
    patient: bool  # whether it may take its time to answer

    def name(self, name: str) -> None: ...

    def tell(self, message: bytes) -> None: ...

    def hang_up(self) -> None: ...


class JobNode(Protocol):
    """Starts workers and hands them signals. What becomes of them is told to whoever made it (Hear)."""

    name: str

    @property
    def ready(self) -> bool:
        """Whether everything that workers need is loaded."""

    def start(self, rank: int, variables: Mapping[str, str]) -> None: ...

    def forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None: ...

    def kill(self) -> None:
        """Ends everything there, without waiting; what it made dies with it."""

    def close(self) -> None:
        """Ends whatever is left there."""
