"""Every message of the store: requests, replies, and what the coordinator says.

A message is a small tagged msgspec struct; tensors are never inside one. A message that has a payload is followed by
raw bytes, laid end to end in the order of its layout:

    Init          the pieces of `parts`, in order
    Push          the pieces of the layout, in order
    Pulled        the pieces of the one part of the layout whose shard it answers, in order
    Pushed        the same when the push said `pull`, else nothing
    Replicate     the values of `slots`, in order
    Snapshot      the same

`Piece.size_bytes` gives each length, so a shell can sendmsg from and recv_into the tensors' own memory; how the bytes
are cut into frames (at most one block each) is the transport's affair.

A **layout** says which pieces of which keys one request holds, shard by shard, for one server. Its name is a digest of
its contents (`layout_name`), so every client that moves the same keys shares one entry of the server's cache. `parts`
travels until the server has answered once, and again when it answers `Refused("layout")`.

Numbers: `epoch` is the table's; a request of another epoch than the server's is refused. `sequence` counts a client's
requests, over all shards, from 1. `after` lists for each part the latest earlier push of this client to that shard
that is still unanswered (0 for none; empty when all are 0): a shard that has not seen it refuses with "early", so no
reordering below can turn around what a client said. `round` counts steps from 1; 0 means outside of rounds.
"""

from hashlib import blake2b
from typing import Literal

import msgspec

from gradtide.checkpoint.entries import FileEntry, ShardEntry

__all__ = [
    "NO_WORKER",
    "RETRYABLE",
    "Beat",
    "BeginCut",
    "BlockImage",
    "Came",
    "CaughtUp",
    "ClientMessage",
    "Closed",
    "CollectCut",
    "Configure",
    "Configured",
    "Created",
    "CutBegun",
    "CutWritten",
    "Decree",
    "Fenced",
    "Gone",
    "Health",
    "Init",
    "Initialised",
    "Inspect",
    "Inspected",
    "Join",
    "KeyInfo",
    "KeySpec",
    "Keys",
    "Lagging",
    "Leave",
    "Listed",
    "Member",
    "Message",
    "Noted",
    "OpenRound",
    "Part",
    "PeerState",
    "Piece",
    "Promise",
    "Propose",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "Question",
    "Reason",
    "RecordImage",
    "Refused",
    "Replicate",
    "Replicated",
    "Reply",
    "Request",
    "Resize",
    "Resized",
    "ServerEntry",
    "ServerMessage",
    "Settled",
    "Slot",
    "Snapshot",
    "Source",
    "Step",
    "Table",
    "UpdateRule",
    "Updated",
    "Version",
    "Welcome",
    "decode",
    "encode",
    "layout_name",
]

NO_WORKER = -1  # the `worker` of a client that is in no round


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """What all messages share: immutable, sent as a MessagePack array that begins with the tag."""


class Version(_Wire, frozen=True, order=True):
    """Where a shard is in its one order of updates: a later epoch is later, whatever the sequence."""

    epoch: int = 0
    sequence: int = 0


class UpdateRule(_Wire, frozen=True):
    """How contributions change a value: a name that updates.py knows, and its arguments as plain numbers."""

    name: str
    arguments: dict[str, bool | int | float | str | tuple[float, ...] | None] = {}
    reduce: Literal["mean", "sum"] = "mean"  # of a round's contributions, before an optimizer's step


class KeySpec(_Wire, frozen=True):
    """What the first `init` of a key fixed; every later one must say the same."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    update: UpdateRule
    delay: int | None = None  # None: async; 0: bsp; k: bounded(k)
    reject_nan: bool = False


class Piece(_Wire, frozen=True):
    """`count` elements from `start` (within the block) of one block of a key."""

    key: str
    block: int
    start: int
    count: int
    size_bytes: int


class Part(_Wire, frozen=True):
    """The pieces of a request that one shard holds: the unit of atomicity."""

    shard: int
    pieces: tuple[Piece, ...]


# --- client to server ---


class Init(_Wire, frozen=True, tag=1):
    """Create a key's blocks (payload: their values). The same again is fine; anything else is refused."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    spec: KeySpec
    parts: tuple[Part, ...]


class Push(_Wire, frozen=True, tag=2):
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


class Pull(_Wire, frozen=True, tag=3):
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


class Configure(_Wire, frozen=True, tag=4):
    """Change an update rule's arguments on the given shards, from a round on (0: from now on)."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    key: str
    changes: dict[str, bool | int | float]
    shards: tuple[int, ...]
    after: tuple[int, ...] = ()
    from_round: int = 0


class Keys(_Wire, frozen=True, tag=5):
    """Which keys do you hold? (`prefix` narrows.)"""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    prefix: str = ""


class BeginCut(_Wire, frozen=True, tag=6):
    """Copy every shard that is yours as of the end of a round (0: as it is), and write the copies to a folder."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    name: str
    folder: str
    round: int = 0


class CollectCut(_Wire, frozen=True, tag=7):
    """Tell me when the copies are written."""

    epoch: int
    client: str
    incarnation: int
    sequence: int
    name: str


# --- server to client: each answers one shard of a request, except the last three ---


class Initialised(_Wire, frozen=True, tag=20):
    """The blocks are there, as asked for."""

    sequence: int
    shard: int
    version: Version


class Pushed(_Wire, frozen=True, tag=21):
    """The push is in the value: in rounds, its round `round` is closed. Configure is answered with this too."""

    sequence: int
    shard: int
    version: Version
    round: int = 0
    replicated: bool = False  # False: applied on the primary only
    staleness: int = 0  # of the values, when the push said `pull`


class Pulled(_Wire, frozen=True, tag=22):
    """The values. `staleness`: how many rounds before the asked step are missing in them (0 in bsp)."""

    sequence: int
    shard: int
    version: Version
    round: int = 0
    staleness: int = 0


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
    "rolled_back",  # more servers died than there were replicas: what was there is gone
]

RETRYABLE: frozenset[str] = frozenset({"epoch", "layout", "early", "busy"})


class Noted(_Wire, frozen=True, tag=25):
    """The push has arrived and waits for its round: no acknowledgement (keep the bytes), but its bytes are no longer
    in flight, and there is no hurry to resend."""

    sequence: int
    shard: int


class Refused(_Wire, frozen=True, tag=23):
    """Not done, and nothing changed on that shard (`shard` -1: on none of them). `text` is one line for the user."""

    sequence: int
    shard: int
    reason: Reason
    text: str = ""
    epoch: int = 0


class KeyInfo(_Wire, frozen=True):
    """A key as one server sees it."""

    spec: KeySpec
    blocks: tuple[int, ...]
    shards: tuple[int, ...]
    size_bytes: int
    version: Version  # the latest of its shards here
    round: int  # the latest that is closed for all of its blocks here


class Listed(_Wire, frozen=True, tag=24):
    """Answers Keys."""

    sequence: int
    keys: tuple[KeyInfo, ...]


class CutBegun(_Wire, frozen=True, tag=26):
    """Answers BeginCut: from here on the cut can't be missed. It is through the shards of this epoch."""

    sequence: int
    epoch: int


class CutWritten(_Wire, frozen=True, tag=27):
    """Answers CollectCut: the files are on disk."""

    sequence: int
    epoch: int  # of the cut
    files: tuple[FileEntry, ...]
    shards: tuple[ShardEntry, ...]


# --- with the coordinator ---


class Join(_Wire, frozen=True, tag=40):
    """A process comes, or comes again. `expected`: of how many of its role (servers, workers) the first table, or the
    first round, should wait for."""

    role: Literal["server", "client", "worker"]
    name: str
    incarnation: int
    address: str = ""  # servers: where clients reach it
    worker: int = NO_WORKER
    expected: int = 0
    replicas: int = 0  # servers: how many copies of each shard there should be beside the primary
    term: int = 0  # servers: the newest table they know; a coordinator that knows less has lost its journal
    epoch: int = 0


class Leave(_Wire, frozen=True, tag=41):
    """A process goes, on purpose. A server waits until its shards are elsewhere: until a table lists it no more. A
    worker can say before which round it will go, so that the others know in time who shares that round's batch."""

    name: str
    incarnation: int
    until: int = 0


class Beat(_Wire, frozen=True, tag=42):
    """I live; and this is the newest I know, so send me what is newer."""

    name: str
    incarnation: int
    term: int = 0
    epoch: int = 0
    decree: int = 0
    clock_s: float = 0.0  # the sender's own, for the answer to repeat: a lease begins when it was asked for


class Welcome(_Wire, frozen=True, tag=43):
    """You are known: beat within `lease_s`. `accepted` False: another incarnation has taken the name, or `text`."""

    name: str
    incarnation: int
    lease_s: float
    accepted: bool = True
    text: str = ""
    clock_s: float = 0.0  # of the beat that this answers


class ServerEntry(_Wire, frozen=True):
    """A server in the table."""

    name: str
    address: str
    incarnation: int


class Source(_Wire, frozen=True):
    """Where shards begin that were lost at an epoch, or with which the store began: a checkpoint's folder.

    `rewind`: all shards do, so workers go back to the step after `round`."""

    epoch: int
    folder: str
    round: int = 0
    rewind: bool = False


class Table(_Wire, frozen=True, tag=44):
    """Which server holds which shard: `owners[shard]` is an index into `servers`, as are those of its replicas.

    `backups[shard]` are in sync: nothing is acknowledged before they have it, and one of them follows a primary that
    dies. `joining[shard]` are being brought up to date. `lost[shard]` is the epoch at which the shard had to begin
    anew because everybody who was in sync had died: empty, or with the checkpoint that `sources` has for that epoch.
    All three are empty in a store without replicas while no shard moves. `leaving` are the servers whose shards are
    moved to others, to let them go.
    """

    term: int
    epoch: int
    servers: tuple[ServerEntry, ...]
    owners: tuple[int, ...]
    replicas: int = 0
    backups: tuple[tuple[int, ...], ...] = ()
    joining: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()
    decree: int = 0  # a primary closes no round before it knows this one
    sources: tuple[Source, ...] = ()
    leaving: tuple[int, ...] = ()

    def source_of(self, shard: int) -> Source | None:
        """The checkpoint that a shard began with; None: it began empty."""
        epoch = self.lost[shard] if self.lost else 0
        return next((source for source in self.sources if source.epoch == epoch), None) if epoch else None


class Member(_Wire, frozen=True):
    """A worker in the rounds, from `from_round` on; if it has said that it will go, only before `until`."""

    worker: int
    from_round: int
    client: str
    incarnation: int
    until: int = 0

    def is_in(self, round_: int) -> bool:
        return self.from_round <= round_ and not 0 < self.until <= round_


class Propose(_Wire, frozen=True, tag=45):
    """Somebody wants to join: from which round could you take him? Don't close that round until decree `number`."""

    term: int
    number: int


class Promise(_Wire, frozen=True, tag=46):
    """I close no round from `round` on before I know decree `number`: of the shards that are mine in `epoch`."""

    server: str
    incarnation: int
    number: int
    round: int
    epoch: int = 0


class Decree(_Wire, frozen=True, tag=47):
    """Who is in the rounds: all of them, so the highest number is all that anybody needs to know. Who was listed and
    is no longer has left: nobody waits for him, and what he pushed counts where it arrived."""

    term: int
    number: int
    members: tuple[Member, ...]


class Gone(_Wire, frozen=True, tag=48):
    """A client will not come back as this incarnation: its answers may go. Losing this word costs memory only."""

    name: str
    incarnation: int


class CaughtUp(_Wire, frozen=True, tag=49):
    """A replica has everything of these shards that was acknowledged, and I acknowledge nothing more without it."""

    server: str
    incarnation: int
    epoch: int
    replica: str
    shards: tuple[int, ...]


class Lagging(_Wire, frozen=True, tag=50):
    """A replica that is in sync has not confirmed anything for too long: decide whether I may go on without it."""

    server: str
    incarnation: int
    epoch: int
    replica: str


# --- for who looks from outside: `gradtide status` and `gradtide scale` ---


class Resize(_Wire, frozen=True, tag=70):
    """Asked of a coordinator: let servers go until so many stay."""

    servers: int


class Resized(_Wire, frozen=True, tag=71):
    """Which servers stay and which are to go, by name. `text`: why nothing was done."""

    staying: tuple[str, ...]
    leaving: tuple[str, ...]
    text: str = ""


class Inspect(_Wire, frozen=True, tag=51):
    """How are you? Asked of a coordinator or a server."""


class PeerState(_Wire, frozen=True):
    """A process as the coordinator sees it."""

    role: str
    name: str
    alive: bool
    silent_s: float
    worker: int


class Inspected(_Wire, frozen=True, tag=52):
    """How a coordinator is."""

    term: int
    lease_s: float
    peers: tuple[PeerState, ...]
    table: Table | None
    decree: Decree | None
    expected_servers: int


class OpenRound(_Wire, frozen=True):
    """The first open round of a block that somebody has pushed for, and whom it waits for."""

    key: str
    round: int
    waits_for: tuple[int, ...]


class Health(_Wire, frozen=True, tag=64):
    """How a server is. `lag`: by replica, how many entries it has not confirmed."""

    server: str
    epoch: int
    lapsed: bool
    size_bytes: int
    lag: dict[str, int]
    held: int  # answers that wait for replicas
    rounds: tuple[OpenRound, ...]


# --- between servers ---


class Slot(_Wire, frozen=True):
    """A value that follows a message between servers."""

    dtype: str
    count: int
    scalar: bool = False  # a number rather than a row of one


class Created(_Wire, frozen=True, tag=1):
    """A block was initialised (one value)."""

    spec: KeySpec
    block: int
    elements: int
    size_bytes: int
    digest: bytes


class Updated(_Wire, frozen=True, tag=2):
    """A block takes one update with the combined contributions (one value) of a round, or of one push (round 0)."""

    key: str
    block: int
    round: int = 0
    workers: tuple[int, ...] = ()


class Came(_Wire, frozen=True, tag=3):
    """A worker will push nothing more to a block up to a round."""

    key: str
    block: int
    worker: int
    round: int


class Closed(_Wire, frozen=True, tag=4):
    """The rounds of a block are closed up to this one, the last of them without a push."""

    key: str
    block: int
    round: int


class Configured(_Wire, frozen=True, tag=5):
    """The rule of a key has other arguments from a round on."""

    key: str
    changes: dict[str, bool | int | float]
    from_round: int


class Settled(_Wire, frozen=True, tag=6):
    """What a push was answered; None: a part of it is applied, the rest waits for its round."""

    client: str
    incarnation: int
    sequence: int
    answer: Pushed | Refused | None


Step = Created | Updated | Came | Closed | Configured | Settled


class Replicate(_Wire, frozen=True, tag=60):
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


class Replicated(_Wire, frozen=True, tag=61):
    """A replica has everything of a shard up to this position."""

    epoch: int
    server: str
    shard: int
    position: Version
    clock_s: float = 0.0


class BlockImage(_Wire, frozen=True):
    """A block, but for its values: `values` of the slots are its own."""

    created: Created
    closed: int
    counted: tuple[tuple[int, tuple[int, ...]], ...]
    changes: tuple[tuple[int, dict[str, bool | int | float]], ...]
    reached: tuple[tuple[int, int], ...]
    arguments: dict[str, bool | int | float | str | tuple[float, ...] | None]  # of its rule, as they are now
    names: tuple[str, ...]  # what an update rule keeps beside the value, one a further slot
    values: int


class RecordImage(_Wire, frozen=True):
    """What a shard remembers of a client."""

    client: str
    incarnation: int
    highest: int
    floor: int
    answers: tuple[Pushed | Refused, ...]
    partial: tuple[int, ...]


class Snapshot(_Wire, frozen=True, tag=62):
    """A whole shard, for a replica that has none or another past."""

    epoch: int
    server: str
    shard: int
    position: Version
    version: Version
    blocks: tuple[BlockImage, ...]
    records: tuple[RecordImage, ...]
    slots: tuple[Slot, ...] = ()


class Fenced(_Wire, frozen=True, tag=63):
    """You speak of an epoch that is over: nothing was taken."""

    epoch: int
    server: str


Request = Init | Push | Pull | Configure | Keys
Question = BeginCut | CollectCut
Reply = Initialised | Pushed | Pulled | Noted | Refused | Listed | CutBegun | CutWritten
ClientMessage = Request | Question | Reply
ServerMessage = Replicate | Replicated | Snapshot | Fenced
Message = (
    Init | Push | Pull | Configure | Keys | Initialised | Pushed | Pulled | Noted | Refused | Listed
    | Join | Leave | Beat | Welcome | Table | Propose | Promise | Decree | Gone | CaughtUp | Lagging
    | Replicate | Replicated | Snapshot | Fenced | Inspect | Inspected | Health | Resize | Resized
    | BeginCut | CollectCut | CutBegun | CutWritten
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as MessagePack, without its payload."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data`; raises msgspec.DecodeError or ValidationError when it is none."""
    return _decoder.decode(data)


def layout_name(parts: tuple[Part, ...]) -> bytes:
    """The name of a layout: a digest of what it says."""
    return blake2b(_encoder.encode(parts), digest_size=12).digest()
