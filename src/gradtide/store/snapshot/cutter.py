"""A server's part in checkpoints: copies its shards as of one cut, and hands them to somebody who writes them.

That is a thread (file_writing.py), or, in the simulator, a stand-in without a disk.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.places import open_place
from gradtide.errors import GradtideError
from gradtide.store.shard.cut import Cutting
from gradtide.store.shard.refusals import Refusal
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import BeginCut, CollectCut, CutBegun, CutWritten, Question, Reason, Refused, Snapshot

__all__ = ["AHEAD_BYTES", "Cutter", "Writing"]

V = TypeVar("V")
Copied = TypeVar("Copied", contravariant=True)

AHEAD_BYTES = 256 << 20  # copies that may wait to be written, if nothing forces more
_REMEMBERED = 8  # checkpoints whose outcome is known after the next one has begun
_LOOK_S = 0.01  # between looks for what could be copied; a block that closes its next round copies itself
PATIENCE_S = 600.0  # for the round of the cut to be closed: a step may take minutes


class Writing(Protocol[Copied]):
    """Writes one server's part of a checkpoint, beside all else; it says when something has changed."""

    epoch: int  # of the table when it began
    files: list[FileEntry]
    shards: list[ShardEntry]
    queued_bytes: int
    failed: str
    over: bool

    @property
    def seconds_behind(self) -> float:
        """How much longer copies may take because there is so much to write: patience is not for that."""
        ...

    def add(self, word: Snapshot, values: Sequence[Copied]) -> None:
        """One more shard."""

    def finish(self) -> None:
        """Nothing more will come."""

    def abandon(self, text: str) -> None:
        """None of it counts any more."""

    def join(self) -> None:
        """Returns when it is over."""


class Cutter(Generic[V]):
    """One checkpoint at a time. `poll` often: it copies what is due, and says what can be answered."""

    def __init__(
        self,
        shard_set: ShardSet[V],
        wake: Callable[[], None],
        copy: Callable[[V], V],
        begin_writing: Callable[[str, Callable[[], None]], Writing[V]],
        roots: Sequence[str] | None = None,
    ) -> None:
        """`begin_writing` is told the folder, and whom to tell of news. `roots`: the folders under which checkpoints
        may be written; None: anywhere."""
        self._shard_set, self._wake, self._copy, self._begin_writing = shard_set, wake, copy, begin_writing
        self._roots = None if roots is None else [open_place(root).real_address for root in roots]
        self._cutting: Cutting[V] | None = None
        self._writing: Writing[V] | None = None
        self._waiting: dict[str, CollectCut] = {}  # by client
        self._written: OrderedDict[str, Writing[V]] = OrderedDict()  # by name: for those who did not ask yet
        self._look_at_s = 0.0
        self._news = False  # from the thread that writes

    @property
    def active(self) -> bool:
        return self._cutting is not None and (bool(self._waiting) or bool(self._cutting.cuts) or self._is_writing)

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.over

    def handle(self, message: Question, now_s: float) -> list[Answer[V]]:
        if message.epoch != self._shard_set.epoch or not self._shard_set.accepts_questions:
            return [self._refuse(message, "epoch", "the table of servers has changed")]
        if isinstance(message, BeginCut):
            return [self._begin(message, now_s)]
        if self._find(message.name) is None:
            return [self._refuse(message, "cut", "the table of servers has changed meanwhile; take it again")]
        self._waiting[message.client] = message
        self._news = True
        return self.poll(now_s)

    def poll(self, now_s: float) -> list[Answer[V]]:
        """Time goes by, or shards have closed rounds."""
        cutting, writing = self._cutting, self._writing
        if cutting is None or writing is None or (now_s < self._look_at_s and not self._news):
            return []
        self._look_at_s, self._news = now_s + _LOOK_S, False
        if cutting.epoch != self._shard_set.epoch:
            cutting.fail("the table of servers has changed meanwhile; take it again")
        members = {member.worker: member for member in self._shard_set.decree.members} if self._shard_set.decree else {}
        ended = self._shard_set.end_empty_rounds(cutting.round) if cutting.cuts and not members else []
        for word, values in cutting.take(AHEAD_BYTES - writing.queued_bytes, members):
            writing.add(word, values)
        if cutting.cuts and now_s - cutting.begun_s > PATIENCE_S + writing.seconds_behind:
            cutting.fail(f"round {cutting.round} was not closed in time: {cutting.waits_for(members)}")
        if cutting.failed:
            writing.abandon(cutting.failed)
        elif not cutting.cuts:
            writing.finish()
        return ended + self._answer_those_who_wait()

    def _answer_those_who_wait(self) -> list[Answer[V]]:
        answers = []
        for client, message in list(self._waiting.items()):
            writing = self._find(message.name)
            if writing is None or writing.over:
                del self._waiting[client]
                answers.append(self._answer(message, writing))
        return answers

    def _find(self, name: str) -> Writing[V] | None:
        return self._writing if self._cutting is not None and self._cutting.name == name else self._written.get(name)

    def _hear(self) -> None:
        self._news = True
        self._wake()

    def close(self) -> None:
        if self._writing is not None:
            self._writing.abandon("the server is going")
            self._writing.join()

    def _may_write_to(self, folder: str) -> bool:
        """Names of clients' choosing are followed to where they lead."""
        if self._roots is None:
            return True
        try:
            where = open_place(folder).real_address
        except (GradtideError, ValueError, OSError):
            return False  # it is no folder's name at all
        return ".." not in where.split("/") and any(
            where.startswith(root.rstrip("/") + "/") or where == root for root in self._roots
        )

    def _begin(self, message: BeginCut, now_s: float) -> Answer[V]:
        old = self._cutting
        if not self._may_write_to(message.folder):
            roots = ", ".join(self._roots or ()) or "no folder at all"
            text = f"it writes checkpoints under {roots}, not to {message.folder}; start it with --checkpoints FOLDER"
            return self._refuse(message, "cut", text)
        if message.name in self._written or (old is not None and old.name == message.name):  # it was said twice
            known = self._find(message.name)
            assert known is not None
            return Answer(message.client, CutBegun(message.sequence, known.epoch))
        if old is not None and (old.cuts or self._is_writing) and not old.failed:
            if old.client != message.client:
                return self._refuse(message, "cut", "another checkpoint is being taken; wait for it")
            old.fail("its client has begun another")
        if old is not None and self._writing is not None:
            self._writing.abandon("its client has begun another")
            self._written[old.name] = self._writing
            while len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
        try:
            shards = list(self._shard_set.shards.values())
            self._cutting = Cutting.begin(
                message.name, message.client, message.round, self._shard_set.epoch, shards, now_s, self._copy
            )
        except Refusal as refusal:
            return self._refuse(message, refusal.reason, refusal.text)
        self._writing = self._begin_writing(message.folder, self._hear)
        return Answer(message.client, CutBegun(message.sequence, self._shard_set.epoch))

    def _answer(self, message: CollectCut, writing: Writing[V] | None) -> Answer[V]:
        if writing is None:
            return self._refuse(message, "cut", "too many others were taken meanwhile; take it again")
        if writing.failed:
            return self._refuse(message, "cut", writing.failed)
        files, shards = tuple(writing.files), tuple(writing.shards)
        return Answer(message.client, CutWritten(message.sequence, writing.epoch, files, shards))

    def _refuse(self, message: Question, reason: Reason, text: str) -> Answer[V]:
        line = text if reason != "cut" else f"the checkpoint failed on {self._shard_set.name}: {text}"
        return Answer(message.client, Refused(message.sequence, -1, reason, line, self._shard_set.epoch))
