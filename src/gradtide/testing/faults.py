"""Faults as named values: what happens to whom, when, and for how long."""

from dataclasses import dataclass
from typing import Literal, Self

__all__ = ["COORDINATOR", "Fault"]

COORDINATOR = "coordinator"

Kind = Literal["kill", "stop", "cut", "join", "leave", "full", "slow", "reset", "stall"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, or somebody who comes or goes."""

    kind: Kind
    who: str
    at_s: float
    for_s: float  # until it is started again, goes on, or is connected again
    disk: bool = True  # the coordinator's: does it find its journal again?
    silent: bool = False  # a machine that dies closes no sockets
    entries: int = 0  # the coordinator's: it finds its journal as it was so many entries ago
    torn: bool = False  # the coordinator's: it is killed while it writes, and what it wrote is not whole
    peer: str = ""  # of a cut: the other end; empty: everybody
    way: Literal["both", "to", "from"] = "both"  # of a cut: which messages of `who` are lost

    @classmethod
    def kill(cls, who: str, at_s: float, for_s: float = 0.3, *, disk: bool = True, silent: bool = False) -> Self:
        """SIGKILL, or a machine that loses power (`silent`); somebody starts it again."""
        return cls("kill", who, at_s, for_s, disk=disk, silent=silent)

    @classmethod
    def lose_entries(cls, at_s: float, for_s: float, entries: int) -> Self:
        """The coordinator is killed, and started with a journal from some time ago; somebody then finds the last."""
        return cls("kill", COORDINATOR, at_s, for_s, entries=entries)

    @classmethod
    def tear(cls, at_s: float, for_s: float) -> Self:
        """The coordinator is killed in the middle of a write."""
        return cls("kill", COORDINATOR, at_s, for_s, torn=True)

    @classmethod
    def fill_disk(cls, at_s: float, for_s: float) -> Self:
        """The coordinator's disk is full."""
        return cls("full", COORDINATOR, at_s, for_s)

    @classmethod
    def slow_disk(cls, at_s: float, for_s: float) -> Self:
        """The coordinator's disk takes its time."""
        return cls("slow", COORDINATOR, at_s, for_s)

    @classmethod
    def stop(cls, who: str, at_s: float, for_s: float) -> Self:
        """SIGSTOP, then SIGCONT: it knows nothing of the time in between."""
        return cls("stop", who, at_s, for_s)

    @classmethod
    def cut(
        cls, who: str, at_s: float, for_s: float, peer: str = "", way: Literal["both", "to", "from"] = "both"
    ) -> Self:
        """Messages from it, to it, or both are lost."""
        return cls("cut", who, at_s, for_s, peer=peer, way=way)

    @classmethod
    def reset(cls, who: str, at_s: float, peer: str) -> Self:
        """The connection of two that live breaks, and they have another at once."""
        return cls("reset", who, at_s, 0.0, peer=peer)

    @classmethod
    def stall(cls, who: str, at_s: float, for_s: float, peer: str) -> Self:
        """A middlebox drops a connection's messages without a word, until the two have another."""
        return cls("stall", who, at_s, for_s, peer=peer)

    @classmethod
    def join(cls, who: str, at_s: float) -> Self:
        """A server that was not there comes."""
        return cls("join", who, at_s, 0.0)

    @classmethod
    def leave(cls, who: str, at_s: float) -> Self:
        """SIGTERM: a server asks to be let go, and goes when its shards are elsewhere."""
        return cls("leave", who, at_s, 0.0)
