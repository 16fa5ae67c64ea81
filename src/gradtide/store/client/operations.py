"""What a client has asked for and not yet got: the operations of a session, and what a session wants done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from gradtide.store.wire.layouts import BlockLayout
from gradtide.store.wire.messages import (
    Argument,
    CutBegun,
    CutWritten,
    Initialised,
    KeySpec,
    Listed,
    Message,
    Pulled,
    Pushed,
    Question,
    Refused,
    Request,
    ServerEntry,
    Version,
)

__all__ = ["Done", "Flight", "Kind", "Operation", "Send", "SessionInstruction", "TellCoordinator"]

V = TypeVar("V")

Kind = Literal["init", "push", "pull", "configure", "keys", "ask"]


@dataclass(frozen=True, slots=True)
class Send(Generic[V]):
    """Send a request and its payload to a server."""

    server: ServerEntry
    message: Request | Question
    values: Sequence[V] = ()


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    """Send a message to the coordinator."""

    message: Message


@dataclass(frozen=True, slots=True)
class Done(Generic[V]):
    """An operation is over. `values[shard]` are the pieces of that shard's part; `refused` says why it failed."""

    sequence: int
    kind: Kind
    versions: dict[int, Version]
    values: dict[int, tuple[V, ...]]
    round: int = 0
    staleness: int = 0
    replicated: bool = False
    listed: tuple[Listed, ...] = ()
    told: tuple[CutBegun | CutWritten, ...] = ()
    refused: Refused | None = None


SessionInstruction = Send[V] | TellCoordinator | Done[V]


@dataclass(slots=True)
class Flight:
    """A request on its way to one server."""

    server: int
    shards: tuple[int, ...]
    size_bytes: int
    open: set[int]  # of its shards, those that have not answered; for "keys" and "ask": the server
    sent: bool = False
    landed: bool = False  # the server has said something about it: its bytes are no longer in flight
    tries: int = 0
    due_s: float = 0.0
    refused: bool = False  # for now, by one of its shards: it goes again soon, whatever the others say


@dataclass(slots=True)
class Operation(Generic[V]):
    """One request of the user, over all the servers it concerns."""

    sequence: int
    kind: Kind
    layout: BlockLayout
    values: Sequence[V]
    unanswered: set[int]  # shards; for "keys" and "ask": servers
    required: dict[int, Version] = field(default_factory=dict)  # shard -> no older than this
    asked: dict[int, Version] = field(default_factory=dict)  # what the user asked for, as at_least
    spec: KeySpec | None = None
    round: int = 0
    weight: float | None = None
    wants_values: bool = False
    settles: bool = False  # is over only when each shard has said whether it is in, though one refuses it
    refused: Refused | None = None  # by one of its shards, while others have not answered
    changes: dict[str, Argument] = field(default_factory=dict)
    from_round: int = 0
    prefix: str = ""
    flights: dict[int, Flight] = field(default_factory=dict)  # by server
    answers: dict[int, Initialised | Pushed | Pulled] = field(default_factory=dict)
    results: dict[int, tuple[V, ...]] = field(default_factory=dict)
    listed: list[Listed] = field(default_factory=list)
    question: Question | None = None  # what every server is asked; for "ask"
    told: list[CutBegun | CutWritten] = field(default_factory=list)

    def done(self, refused: Refused | None = None) -> Done[V]:
        """What the user is told."""
        counted = [answer for answer in self.answers.values() if isinstance(answer, Pushed | Pulled)]
        return Done(
            sequence=self.sequence,
            kind=self.kind,
            versions={shard: answer.version for shard, answer in self.answers.items()},
            values=self.results,
            round=min((answer.round for answer in counted), default=0),
            staleness=max((answer.staleness for answer in counted), default=0),
            replicated=bool(counted) and all(isinstance(a, Pushed) and a.replicated for a in counted),
            listed=tuple(self.listed),
            told=tuple(self.told),
            refused=refused,
        )
