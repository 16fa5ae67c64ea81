"""Between clients and servers: requests and their replies."""

from typing import Literal

from msgspec import field

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.store.wire.messages.parts import NO_WORKER, Argument, KeySpec, Part, Slot, Version, Wire

# --- client to server ---


class Init(Wire, frozen=True, tag=1):
    """Create a key's blocks (payload: their values). The same again is fine; anything else is refused."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    spec: KeySpec
    parts: tuple[Part, ...]


class Push(Wire, frozen=True, tag=2):
    """Add a contribution (payload: the values); with `pull`, the answer brings the values after it was applied."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    layout: bytes
    parts: tuple[Part, ...] = ()
    after: tuple[int, ...] = ()
    round: int = 0
    worker: int = NO_WORKER
    weight: float | None = None  # None: the one of the rule's semiring
    pull: bool = False
    decree: int = 0  # the newest the client knows: a shard that knows only older ones refuses with "early"


class Pull(Wire, frozen=True, tag=3):
    """Read values. A worker's pull of step `round` says too that its pushes of the steps before are all sent."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    layout: bytes
    parts: tuple[Part, ...] = ()
    after: tuple[int, ...] = ()
    round: int = 0
    worker: int = NO_WORKER
    at_least: tuple[Version, ...] = ()  # by part; empty: any
    decree: int = 0


class Configure(Wire, frozen=True, tag=4):
    """Change an update rule's arguments on the given shards, from a round on (0: from now on)."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    key: str
    changes: dict[str, Argument]
    shards: tuple[int, ...]
    after: tuple[int, ...] = ()
    from_round: int = 0


class Keys(Wire, frozen=True, tag=5):
    """Which keys do you hold? (`prefix` narrows.)"""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    prefix: str = ""


class BeginCut(Wire, frozen=True, tag=6):
    """Copy every shard that is yours as of the end of a round (0: as it is), and write the copies to a folder."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    name: str
    folder: str
    round: int = 0


class CollectCut(Wire, frozen=True, tag=7):
    """Tell me when the copies are written."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    name: str


# --- server to client: each answers one shard of a request, except the last three ---


class Initialised(Wire, frozen=True, tag=20):
    """The blocks are there, as asked for."""

    sequence: int
    shard: int
    version: Version


class Pushed(Wire, frozen=True, tag=21):
    """The push is in the value: in rounds, its round `round` is closed. Configure is answered with this too."""

    sequence: int
    shard: int
    version: Version
    round: int = 0
    replicated: bool = False  # False: applied on the primary only
    staleness: int = 0  # of the values, when the push said `pull`


class Pulled(Wire, frozen=True, tag=22):
    """The values. `staleness`: how many rounds before the asked step are missing in them (0 in bsp). `decree`: the one
    that says who is in the asked step, or a later one."""

    sequence: int
    shard: int
    version: Version
    round: int = 0
    staleness: int = 0
    decree: int = 0


Reason = Literal[
    "epoch",  # the table has changed: fetch it, send again
    "layout",  # the server has forgotten the layout: send again with its parts
    "early",  # an earlier push of this client has not arrived: send all again, in order
    "busy",  # too many early arrivals wait here: send again later
    "incarnation",  # a later incarnation of this client was here: stop
    "unknown_key",
    "mismatch",  # shape, dtype, update rule or initial value differs
    "not_member",  # this worker is not, or no longer, in the rounds
    "stale",  # the round is closed, and this worker was not in it
    "nan",
    "forgotten",  # too old for the filter: whether it was applied can no longer be told
    "rule",  # the update rule refuses these arguments
    "passed",  # a round that was to be cut at is closed already
    "cut",  # a checkpoint could not be taken
    "whole",  # of this round there is nothing encoded to give: pull the values whole
    "rolled_back",  # more servers died than there were replicas: what was there is gone
]

RETRYABLE: frozenset[str] = frozenset({"epoch", "layout", "early", "busy"})


class Noted(Wire, frozen=True, tag=25):
    """The push has arrived and waits for its round: no acknowledgement (keep the bytes), but its bytes are no longer
    in flight, and there is no hurry to resend."""

    sequence: int
    shard: int


class Refused(Wire, frozen=True, tag=23):
    """Not done, and nothing changed on that shard (`shard` -1: on none of them). `text` is one line for the user."""

    sequence: int
    shard: int
    reason: Reason
    text: str = ""
    epoch: int = 0


class KeyInfo(Wire, frozen=True):
    """A key as one server sees it."""

    spec: KeySpec
    blocks: tuple[int, ...]
    shards: tuple[int, ...]
    size_bytes: int
    version: Version  # the latest of its shards here
    round: int  # the latest that is closed for all of its blocks here
    beside: dict[str, Slot] = field(
        default_factory=dict
    )  # what the rule keeps beside the value, in the first of its blocks here


class Listed(Wire, frozen=True, tag=24):
    """Answers Keys."""

    sequence: int
    keys: tuple[KeyInfo, ...]


class CutBegun(Wire, frozen=True, tag=26):
    """Answers BeginCut: from here on the cut can't be missed. It is through the shards of this epoch."""

    sequence: int
    epoch: int


class CutWritten(Wire, frozen=True, tag=27):
    """Answers CollectCut: the files are on disk."""

    sequence: int
    epoch: int  # of the cut
    files: tuple[FileEntry, ...]
    shards: tuple[ShardEntry, ...]
