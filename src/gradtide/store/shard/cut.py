"""A checkpoint's cut through the shards of one server: pure.

In rounds the cut is at the end of round r. A block is copied when it has closed r: in the background, as fast as its
copies are written, or at the latest when it is about to close r + 1. So one cut goes through all shards of all
servers, and nobody stops. What is outside of rounds is copied together with the filter of its shard, in one go, before
any block of that shard goes beyond r: it is exact for each shard. A push of a round up to r that is settled later than
the filter was copied is in the value, and the block knows who was in which round, so it still counts once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, TypeVar

from gradtide.store.shard.image import image_of, put_together
from gradtide.store.shard.refusals import Refusal
from gradtide.store.shard.shard import Shard
from gradtide.store.wire.messages import BlockImage, Member, RecordImage, Snapshot

__all__ = ["Cut", "Cutting"]

V = TypeVar("V")
Name = tuple[str, int]


@dataclass(slots=True)
class Cut(Generic[V]):
    """The copy of one shard in the making."""

    shard: Shard[V]
    round: int
    copy: Callable[[V], V]
    missing: dict[Name, None] = field(default_factory=dict)  # blocks in rounds that are not copied yet
    images: dict[Name, tuple[BlockImage, tuple[V, ...]]] = field(default_factory=dict)
    records: tuple[RecordImage, ...] | None = None

    @classmethod
    def of(cls, shard: Shard[V], round_: int, copy: Callable[[V], V]) -> "Cut[V]":
        """Raises Refusal when a block has gone beyond that round already."""
        in_rounds = {name: block for name, block in shard.blocks.items() if block.spec.delay is not None}
        beyond = max((block.closed for block in in_rounds.values()), default=0)
        if beyond > round_:
            raise Refusal("passed", f"round {beyond} is closed, and the cut was to be at {round_}")
        return cls(shard, round_, copy, dict.fromkeys(in_rounds))

    @property
    def done(self) -> bool:
        return self.records is not None and not self.missing

    def goes_beyond(self, name: Name, frontier: int) -> bool:
        """Would a block that closes up to `frontier` miss the cut?"""
        return frontier > self.round and name in self.missing

    def copy_before_it_goes_on(self, name: Name) -> None:
        """The block has closed the cut's round, and will close the next now."""
        self._copy_what_is_outside_of_rounds()
        self._copy(name)

    def copy_due(self, most_bytes: int, all_came_by: Callable[[], bool]) -> int:
        """Copies what has closed the round, up to so many bytes; returns how many it was.

        `all_came_by`: has everybody been here with a later round? Then a block in which nobody's push waits will get
        none up to the cut's.
        """
        copied = self._copy_what_is_outside_of_rounds()
        for name in list(self.missing):
            if copied >= most_bytes:
                break
            block = self.shard.blocks[name]
            if block.closed >= self.round or (not any(r <= self.round for r in block.open) and all_came_by()):
                copied += self._copy(name)
        return copied

    def image(self) -> tuple[Snapshot, tuple[V, ...]]:
        """The whole shard."""
        assert self.records is not None
        return put_together(self.shard, self.images.values(), self.records)

    def _copy_what_is_outside_of_rounds(self) -> int:
        if self.records is not None:
            return 0
        self.records = self.shard.filter.images()
        steady = [name for name, block in self.shard.blocks.items() if block.spec.delay is None]
        return sum(map(self._copy, steady))

    def _copy(self, name: Name) -> int:
        self.missing.pop(name, None)
        image, values = image_of(name[1], self.shard.blocks[name])
        self.images[name] = image, tuple(map(self.copy, values))
        return image.created.size_bytes * len(values)


@dataclass(slots=True)
class Cutting(Generic[V]):
    """The cut through all shards of a server, for one checkpoint."""

    name: str  # of the checkpoint
    client: str  # who asked for it
    round: int
    epoch: int  # of the table: when it changes, others hold other shards, and this is over
    begun_s: float
    shards: tuple[Shard[V], ...]
    cuts: dict[int, Cut[V]]  # of those that are not whole yet
    failed: str = ""

    @classmethod
    def begin(
        cls,
        name: str,
        client: str,
        round_: int,
        epoch: int,
        shards: Iterable[Shard[V]],
        now_s: float,
        copy: Callable[[V], V],
    ) -> "Cutting[V]":
        """Raises Refusal when it is too late for that round."""
        held = tuple(shard for shard in shards if shard.blocks)
        cuts = {shard.number: Cut.of(shard, round_, copy) for shard in held}
        for number, cut in cuts.items():
            cut.shard.cut = cuts[number]
        return cls(name, client, round_, epoch, now_s, held, cuts)

    def take(self, most_bytes: int, members: Mapping[int, Member]) -> Iterator[tuple[Snapshot, tuple[V, ...]]]:
        """Copies what is due, up to so many bytes, and hands over the shards that are whole."""
        came = cache(lambda: self._all_came_by(members))  # it takes a look at every block
        for number, cut in list(self.cuts.items()):
            if not cut.done and most_bytes > 0:
                most_bytes -= cut.copy_due(most_bytes, came)
            if cut.done:
                del self.cuts[number]
                cut.shard.cut = None
                yield cut.image()

    def fail(self, text: str) -> None:
        """It will not be whole."""
        self.failed = self.failed or text
        for cut in self.cuts.values():
            cut.shard.cut = None
        self.cuts.clear()

    def waits_for(self, members: Mapping[int, Member]) -> str:
        """What holds it up, in words."""
        for cut in self.cuts.values():
            for name in cut.missing:
                block = cut.shard.blocks[name]
                if block.closed < self.round:
                    late = [m.worker for m in members.values() if block.reached.get(m.worker, 0) < self.round]
                    who = f"worker {', '.join(map(str, sorted(late)))}" if late else "nobody"
                    return f"{name[0]!r} is at round {block.closed}; waited for {who}"
        return "its copies are not all made"

    def _all_came_by(self, members: Mapping[int, Member]) -> bool:
        """Has every member been at this server with a later round than the cut's?

        What a client sends to one server arrives in the order in which it was said, request by request; so nothing up
        to the cut's round is still on its way here. If there is none, somebody may yet come: rounds that are empty are
        ended first (Shard), so that who comes begins after them.
        """
        if not members:
            return False
        reached: dict[int, int] = {}
        for shard in self.shards:
            for block in shard.blocks.values():
                for worker, round_ in block.reached.items():
                    reached[worker] = max(round_, reached.get(worker, 0))
        return all(reached.get(member.worker, 0) > self.round for member in members.values())
