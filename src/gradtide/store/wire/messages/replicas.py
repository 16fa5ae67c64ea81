"""Between servers: what a replica is told, and what it answers."""

from gradtide.store.wire.messages.parts import Argument, KeySpec, Slot, Version, Wire
from gradtide.store.wire.messages.requests import Pushed, Refused

# --- between servers ---


class Created(Wire, frozen=True, tag=1):
    """A block was initialised (one value)."""

    spec: KeySpec
    block: int
    elements: int
    size_bytes: int
    digest: bytes


class Updated(Wire, frozen=True, tag=2):
    """A block takes one update with the combined contributions (one value) of a round, or of one push (round 0)."""

    key: str
    block: int
    round: int = 0
    workers: tuple[int, ...] = ()


class Came(Wire, frozen=True, tag=3):
    """A worker will push nothing more to a block up to a round."""

    key: str
    block: int
    worker: int
    round: int


class RoundsClosed(Wire, frozen=True, tag=4):
    """The rounds of a block are closed up to this one, the last of them without a push."""

    key: str
    block: int
    round: int


class Configured(Wire, frozen=True, tag=5):
    """The rule of a key has other arguments from a round on."""

    key: str
    changes: dict[str, Argument]
    from_round: int


class Settled(Wire, frozen=True, tag=6):
    """What a push was answered; None: a part of it is applied, the rest waits for its round."""

    client: str
    incarnation: int
    sequence: int
    answer: Pushed | Refused | None
    waiting: tuple[int, ...] = ()  # of this client: older than the answers that are kept, but waits for its round


Step = Created | Updated | Came | RoundsClosed | Configured | Settled


class Replicate(Wire, frozen=True, tag=60):
    """One entry of a shard's log, from its primary. Without steps: where are you? `shard` -1: are you still with me?

    An entry is known by its position (the epoch it was made in, its number), as one shard has one primary an epoch.
    """

    epoch: int
    server: str
    shard: int
    previous: Version
    position: Version
    version: Version
    steps: tuple[Step, ...] = ()
    slots: tuple[Slot, ...] = ()
    clock_s: float = 0.0


class Replicated(Wire, frozen=True, tag=61):
    """A replica has everything of a shard up to this position."""

    epoch: int
    server: str
    shard: int
    position: Version
    clock_s: float = 0.0
    again: bool = False  # it did not know this epoch yet when it was told more: tell it again


class BlockImage(Wire, frozen=True):
    """A block, but for its values: `values` of the slots are its own."""

    created: Created
    closed: int
    counted: tuple[tuple[int, tuple[int, ...]], ...]
    changes: tuple[tuple[int, dict[str, Argument]], ...]
    reached: tuple[tuple[int, int], ...]
    arguments: dict[str, Argument]  # of its rule, as they are now
    names: tuple[str, ...]  # what an update rule keeps beside the value, one a further slot
    values: int


class RecordImage(Wire, frozen=True):
    """What a shard remembers of a client."""

    client: str
    incarnation: int
    highest: int
    floor: int
    answers: tuple[Pushed | Refused, ...]
    partial: tuple[int, ...]
    waiting: tuple[int, ...] = ()  # older than the answers, and waits for its round


class Snapshot(Wire, frozen=True, tag=62):
    """A whole shard, for a replica that has none or another past."""

    epoch: int
    server: str
    shard: int
    position: Version
    version: Version
    blocks: tuple[BlockImage, ...]
    records: tuple[RecordImage, ...]
    slots: tuple[Slot, ...] = ()


class Fenced(Wire, frozen=True, tag=63):
    """You speak of an epoch that is over: nothing was taken."""

    epoch: int
    server: str
