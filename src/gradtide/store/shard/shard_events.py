"""What happens to a shard, and what it answers: the events that shard_set.py cuts requests into. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradtide.store.wire.messages import Absent, Configure, Decree, Init, Part, Pull, Push, Reply, Version

__all__ = ["Answer", "ConfigurePart", "Forget", "InitPart", "PullPart", "PushPart", "RoundsEmpty", "ShardEvent"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class InitPart(Generic[V]):
    """The blocks of an Init that are this shard's."""

    request: Init
    part: Part
    values: Sequence[V]


@dataclass(frozen=True, slots=True)
class PushPart(Generic[V]):
    """The pieces of a Push that are this shard's; the shard keeps `values` until they are applied."""

    request: Push
    part: Part
    after: int
    values: Sequence[V]


@dataclass(frozen=True, slots=True)
class PullPart:
    """The pieces of a Pull that are this shard's."""

    request: Pull
    part: Part
    after: int
    at_least: Version


@dataclass(frozen=True, slots=True)
class ConfigurePart:
    """A Configure that touches this shard."""

    request: Configure
    after: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Clients are gone for good: their answers may go."""

    absent: Absent


@dataclass(frozen=True, slots=True)
class RoundsEmpty:
    """A checkpoint is to be of this round, and nobody is in it: it ends as it is."""

    round: int


ShardEvent = InitPart[V] | PushPart[V] | PullPart | ConfigurePart | Decree | Forget | RoundsEmpty


@dataclass(frozen=True, slots=True)
class Answer(Generic[V]):
    """Send `message`, followed by `values`, to a client."""

    client: str
    message: Reply
    values: tuple[V, ...] = ()
