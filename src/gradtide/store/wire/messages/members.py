"""With the coordinator: who is there, who holds what, who is in the rounds; and for who looks from outside."""

import secrets
from typing import Literal

import msgspec

from gradtide.store.wire.messages.parts import NO_WORKER, Wire

# --- with the coordinator ---


class Absent(Wire, frozen=True):
    """Which starts of clients are over: all whose number is below `floor`, but for the living."""

    floor: int = 0
    living: tuple[int, ...] = ()

    def includes(self, incarnation: int) -> bool:
        return incarnation < self.floor and incarnation not in self.living


class Join(Wire, frozen=True, tag=40):
    """A process comes, or comes again. One that comes for the first time has no `incarnation` yet, but a `token` of its
    own; the coordinator numbers it. `expected`: of how many of its role (servers, workers) the first table, or the
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
    token: int = 0


class Leave(Wire, frozen=True, tag=41):
    """A process goes, on purpose. A server waits until its shards are elsewhere: until a table lists it no more. A
    worker can say before which round it will go, so that the others know in time who shares that round's batch."""

    name: str
    incarnation: int
    until: int = 0


class Beat(Wire, frozen=True, tag=42):
    """I live; and this is the newest I know, so send me what is newer."""

    name: str
    incarnation: int
    term: int = 0
    epoch: int = 0
    decree: int = 0
    clock_s: float = 0.0  # the sender's own, for the answer to repeat: a lease begins when it was asked for


class Rival(Wire, frozen=True):
    """Who has a worker's number. If it has ended without a word, `words` stays and the number is free in `left_s`."""

    name: str
    words: int  # beats of it that were heard
    left_s: float


class Welcome(Wire, frozen=True, tag=43):
    """You are known, by this incarnation: beat within `lease_s`. `accepted` False: not you, and `text` says why;
    without a text you are not known here and must join."""

    name: str
    incarnation: int
    lease_s: float
    accepted: bool = True
    text: str = ""
    clock_s: float = 0.0  # of the beat that this answers
    token: int = 0  # of the Join that this answers
    at_s: float = 0.0  # by the coordinator's own clock, when it answered; 0: it does not say
    clock: str = ""  # the name of that clock (observe/clocks.py)
    rival: Rival | None = None  # why not


class Elsewhere(Wire, frozen=True, tag=72):
    """Of a coordinator that does not lead, whatever it was asked: `leader` does, as far as is known here; nobody, as
    far as is known, if that is empty. `text`: what is wrong, if something is."""

    leader: str = ""
    text: str = ""


class ServerEntry(Wire, frozen=True):
    """A server in the table."""

    name: str
    address: str
    incarnation: int


class Source(Wire, frozen=True):
    """Where shards begin that were lost at an epoch, or with which the store began: a checkpoint's folder.

    `rewind`: all shards do, so workers go back to the step after `round`."""

    epoch: int
    folder: str
    round: int = 0
    rewind: bool = False


class Table(Wire, frozen=True, tag=44):
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
    absent: Absent = Absent()  # no later than the one that was told last

    def source_of(self, shard: int) -> Source | None:
        """The checkpoint that a shard began with; None: it began empty."""
        epoch = self.lost[shard] if self.lost else 0
        return next((source for source in self.sources if source.epoch == epoch), None) if epoch else None

    @property
    def short_of_copies(self) -> int:
        """How many shards have fewer copies in sync than are wanted."""
        return sum(len(backups) < self.replicas for backups in self.backups)

    def same_processes(self, before: "Table | None") -> frozenset[str]:
        """The names of servers that are who they were in the table before. Nothing is known of the time between two
        tables that don't follow each other."""
        if before is None or self.epoch - before.epoch > 1:
            return frozenset()
        return frozenset(server.name for server in set(before.servers).intersection(self.servers))


def new_token() -> int:
    """By which the coordinator knows a process until it has given it an incarnation."""
    return secrets.randbits(62) + 1


def too_few_servers(table: Table) -> str:
    return f"{table.replicas + 1} copies need {table.replicas + 1} servers, and {len(table.servers)} have come"


class Member(Wire, frozen=True):
    """A worker in the rounds, from `from_round` on; if it has said that it will go, only before `until`."""

    worker: int
    from_round: int
    client: str
    incarnation: int
    until: int = 0

    def is_in(self, round_: int) -> bool:
        return self.from_round <= round_ and not 0 < self.until <= round_


class Propose(Wire, frozen=True, tag=45):
    """Somebody wants to join: from which round could you take him? Don't close that round until decree `number`."""

    term: int
    number: int


class Promise(Wire, frozen=True, tag=46):
    """I close no round from `round` on before I know decree `number`: of the shards that are mine in `epoch`."""

    server: str
    incarnation: int
    number: int
    round: int
    epoch: int = 0


class Decree(Wire, frozen=True, tag=47):
    """Who is in the rounds: all of them, so the highest number is all that anybody needs to know. Who was listed and
    is no longer has left: nobody waits for him, and what he pushed counts where it arrived."""

    term: int
    number: int
    members: tuple[Member, ...]


class Gone(Wire, frozen=True, tag=48):
    """Clients will not come back as who they were: their answers may go. Losing this word costs memory only: the next
    table says it again."""

    absent: Absent


class CaughtUp(Wire, frozen=True, tag=49):
    """A replica has everything of these shards that was acknowledged, and I acknowledge nothing more without it."""

    server: str
    incarnation: int
    epoch: int
    replica: str
    shards: tuple[int, ...]


class Lagging(Wire, frozen=True, tag=50):
    """A replica that is in sync has not confirmed anything for too long: decide whether I may go on without it."""

    server: str
    incarnation: int
    epoch: int
    replica: str


# --- for who looks from outside: `gradtide status` and `gradtide scale` ---


class Resize(Wire, frozen=True, tag=70):
    """Asked of a coordinator: let servers go until so many stay."""

    servers: int


class Resized(Wire, frozen=True, tag=71):
    """Which servers stay and which are to go, by name. `text`: why nothing was done."""

    staying: tuple[str, ...]
    leaving: tuple[str, ...]
    text: str = ""


class Inspect(Wire, frozen=True, tag=51):
    """How are you? Asked of a coordinator or a server."""


class PeerState(Wire, frozen=True):
    """A process as the coordinator sees it."""

    role: str
    name: str
    alive: bool
    silent_s: float
    worker: int


class Happened(Wire, frozen=True):
    """An event of the store (events.py), and how long ago it was."""

    number: int
    ago_s: float
    event: str
    fields: dict[str, str | int | list[int]]


class Inspected(Wire, frozen=True, tag=52):
    """How a coordinator is."""

    term: int
    lease_s: float
    peers: tuple[PeerState, ...]
    table: Table | None
    decree: Decree | None
    expected_servers: int
    worries: tuple[str, ...] = ()  # what makes the store less safe than it could be, by this process's doing
    happened: tuple[Happened, ...] = ()  # the latest events
    failures: dict[str, int] = msgspec.field(default_factory=dict)  # how many members were lost since it began, by role


class OpenRound(Wire, frozen=True):
    """The first open round of a block that somebody has pushed for, and whom it waits for."""

    key: str
    round: int
    waits_for: tuple[int, ...]


class Health(Wire, frozen=True, tag=64):
    """How a server is. `lag`: by replica, how many entries it has not confirmed."""

    server: str
    epoch: int
    lapsed: bool
    size_bytes: int
    lag: dict[str, int]
    held: int  # answers that wait for replicas
    rounds: tuple[OpenRound, ...]
