"""The shards of one server: pure. It cuts requests into shards' events, holds the table's epoch, and knows layouts.

How a shell drives it:

    parts = host.parts(message)          before the payload is read: which pieces follow, and how long each is
                                         (None: unknown layout; drain the payload, then handle() with no values)
    answers = host.handle(message, values)     send each Answer to the connection that client has now
    words = host.hear(message, now_s)          from the coordinator: Welcome, Table, Propose, Decree; send it the words
    words = host.tick(now_s)                   at least every lease / 4

The values in an Answer are the shards' own memory: send or copy them before the next call.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gradtide.store.arithmetic import Arithmetic
from gradtide.store.beats import Heart
from gradtide.store.messages import (
    Beat,
    Configure,
    Decree,
    Gone,
    Init,
    Join,
    KeyInfo,
    Keys,
    Listed,
    Message,
    Part,
    Promise,
    Propose,
    Pull,
    Push,
    Refused,
    Request,
    Table,
    Version,
    Welcome,
    layout_name,
)
from gradtide.store.shard import Answer, ConfigurePart, Forget, InitPart, PullPart, PushPart, Shard

__all__ = ["LAYOUTS_KEPT", "Host"]

V = TypeVar("V")

LAYOUTS_KEPT = 1024


@dataclass(slots=True)
class Host(Generic[V]):
    """All that a server knows, but for its sockets."""

    name: str
    incarnation: int
    address: str
    arithmetic: Arithmetic[V]
    expected: int = 0  # how many servers the first table should wait for
    table: Table | None = None
    decree: Decree | None = None
    proposal: Propose | None = None
    owned: frozenset[int] = frozenset()
    shards: dict[int, Shard[V]] = field(default_factory=dict)  # those of the owned that anybody has touched
    layouts: OrderedDict[bytes, tuple[Part, ...]] = field(default_factory=OrderedDict)
    heart: Heart = field(default_factory=Heart)

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table else 0

    @property
    def waiting_bytes(self) -> int:
        """What the contributions to open rounds hold: a shell that is above its limit grants no more credits."""
        return sum(shard.waiting_bytes for shard in self.shards.values())

    # --- clients ---

    def parts(self, message: Request) -> tuple[Part, ...] | None:
        """The pieces that a request is about; None when it names a layout that is not known here."""
        if isinstance(message, Init):
            return message.parts
        if not isinstance(message, Push | Pull):
            return ()
        if message.parts:
            if layout_name(message.parts) != message.layout:
                return None
            self.layouts[message.layout] = message.parts
            if len(self.layouts) > LAYOUTS_KEPT:
                self.layouts.popitem(last=False)
        elif message.layout in self.layouts:
            self.layouts.move_to_end(message.layout)
        return self.layouts.get(message.layout)

    def handle(self, message: Request, values: Sequence[V] = ()) -> list[Answer[V]]:
        """Take a request and the values that came with it, one a piece; returns the answers."""
        parts = self.parts(message)
        if not self.accepts(message, parts or ()):
            refused = Refused(message.sequence, -1, "epoch", "the table of servers has changed", self.epoch)
            return [Answer(message.client, refused)]
        if parts is None:
            return [Answer(message.client, Refused(message.sequence, -1, "layout", "unknown layout", self.epoch))]
        match message:
            case Push() | Init():
                return self._deliver_values(message, parts, values)
            case Pull():
                return self._deliver_pull(message, parts)
            case Configure():
                return self._deliver_configure(message)
            case Keys():
                return [Answer(message.client, Listed(message.sequence, self.list_keys(message.prefix)))]

    def accepts(self, message: Request, parts: tuple[Part, ...]) -> bool:
        """Is a request about this table's epoch, and about shards that are here?"""
        return message.epoch == self.epoch and all(part.shard in self.owned for part in parts)

    def deliver(self, message: Push | Init, index: int, part: Part, values: Sequence[V]) -> list[Answer[V]]:
        """One part of a request that was accepted: a shell hands parts over as they arrive, or `handle` does."""
        shard = self._shard(part.shard)
        if isinstance(message, Push):
            return shard.handle(PushPart(message, part, message.after[index] if message.after else 0, values))
        return shard.handle(InitPart(message, part, values))

    def _shard(self, number: int) -> Shard[V]:
        """Shards are made when they are first touched: most servers hold few keys."""
        shard = self.shards.get(number)
        if shard is None:
            shard = self.shards[number] = self._new_shard(number)
        return shard

    def _deliver_values(self, message: Push | Init, parts: tuple[Part, ...], values: Sequence[V]) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        first = 0
        for i, part in enumerate(parts):
            own = values[first : first + len(part.pieces)]
            first += len(part.pieces)
            answers += self.deliver(message, i, part, own)
        return answers

    def _deliver_pull(self, message: Pull, parts: tuple[Part, ...]) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        for i, part in enumerate(parts):
            after = message.after[i] if message.after else 0
            at_least = message.at_least[i] if message.at_least else Version()
            answers += self._shard(part.shard).handle(PullPart(message, part, after, at_least))
        return answers

    def _deliver_configure(self, message: Configure) -> list[Answer[V]]:
        answers: list[Answer[V]] = []
        for i, number in enumerate(message.shards):
            if number in self.owned:
                after = message.after[i] if message.after else 0
                answers += self._shard(number).handle(ConfigurePart(message, after))
        return answers

    def list_keys(self, prefix: str = "") -> tuple[KeyInfo, ...]:
        """The keys that have a block here, by name."""
        found: dict[str, list[tuple[int, Shard[V]]]] = {}
        for shard in self.shards.values():
            for key, block in shard.blocks:
                if key.startswith(prefix):
                    found.setdefault(key, []).append((block, shard))
        return tuple(_describe(key, sorted(found[key], key=lambda place: place[0])) for key in sorted(found))

    # --- coordinator ---

    def hear(self, message: Message, now_s: float) -> tuple[list[Message], list[Answer[V]]]:
        """What the coordinator said; returns what to tell it, and what to tell clients."""
        match message:
            case Welcome():
                self.heart.welcome(message, now_s)
            case Table() if (message.term, message.epoch) > (
                (self.table.term, self.table.epoch) if self.table else (0, 0)
            ):
                self._take_table(message)
                return [self._beat()], []
            case Propose() if self.table is not None:
                return [self._promise(message)], []
            case Decree() if self.decree is None or message.number > self.decree.number:
                self.decree = message
                answers = [answer for shard in self.shards.values() for answer in shard.handle(message)]
                return [self._beat()], answers
            case Gone():
                for shard in self.shards.values():
                    shard.handle(Forget(message.name, message.incarnation))
        return [], []

    def tick(self, now_s: float) -> list[Message]:
        """Time goes by: join, or beat."""
        if not self.heart.is_due(now_s):
            return []
        if not self.heart.welcomed:
            return [Join("server", self.name, self.incarnation, self.address, expected=self.expected)]
        return [self._beat()]

    def _beat(self) -> Beat:
        table, decree = self.table, self.decree
        return Beat(self.name, self.incarnation, table.term if table else 0, self.epoch, decree.number if decree else 0)

    def _take_table(self, table: Table) -> None:
        """Shards that stay go on in the new epoch."""
        self.table = table
        index = next(
            (i for i, server in enumerate(table.servers) if self._is_me(server.name, server.incarnation)), None
        )
        self.owned = frozenset(number for number, owner in enumerate(table.owners) if owner == index)
        self.shards = {number: shard for number, shard in self.shards.items() if number in self.owned}
        for shard in self.shards.values():
            shard.adopt_epoch(table.epoch)

    def _is_me(self, name: str, incarnation: int) -> bool:
        return (name, incarnation) == (self.name, self.incarnation)

    def _new_shard(self, number: int) -> Shard[V]:
        shard = Shard(number, self.arithmetic, Version(self.epoch, 0))
        if self.decree is not None:
            shard.handle(self.decree)
        if self.proposal is not None:
            shard.promise(self.proposal)
        return shard

    def _promise(self, proposal: Propose) -> Promise:
        if self.proposal is None or proposal.number > self.proposal.number:
            self.proposal = proposal
        rounds = [shard.promise(proposal) for shard in self.shards.values()]
        return Promise(self.name, self.incarnation, proposal.number, max(rounds, default=1))


def _describe(key: str, places: list[tuple[int, Shard[V]]]) -> KeyInfo:
    blocks = [shard.blocks[key, block] for block, shard in places]
    return KeyInfo(
        spec=blocks[0].spec,
        blocks=tuple(block for block, _ in places),
        shards=tuple(shard.number for _, shard in places),
        size_bytes=sum(block.size_bytes for block in blocks),
        version=max(shard.version for _, shard in places),
        round=min(block.closed for block in blocks),
    )
