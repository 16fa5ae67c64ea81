"""A server's part in checkpoints: copies its shards as of one cut, and writes them from a thread of its own."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from torch import Tensor

from gradtide.checkpoint.direct import PAGE_BYTES
from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.tensor_file import write_file
from gradtide.errors import GradtideError
from gradtide.store.shard.cut import Cutting
from gradtide.store.shard.refusals import Refusal
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.copies import Copies
from gradtide.store.snapshot.shard_file import entry_of, part_of
from gradtide.store.wire.messages import BeginCut, CollectCut, CutBegun, CutWritten, Question, Reason, Refused, Snapshot

__all__ = ["Cutter"]

FILE_BYTES = 128 << 20  # about how much goes into one file
_AHEAD_BYTES = 2 * FILE_BYTES  # copies that may wait to be written, if nothing forces more
_REMEMBERED = 8  # checkpoints whose outcome is known after the next one has begun
_LOOK_S = 0.01  # between looks for what could be copied; a block that closes its next round copies itself
_PATIENCE_S = 600.0  # for the round of the cut to be closed: a step may take minutes


class Cutter:
    """One checkpoint at a time. `poll` often: it copies what is due, and says what can be answered."""

    def __init__(
        self, shard_set: ShardSet[Tensor], wake: Callable[[], None], roots: Sequence[str] | None = None
    ) -> None:
        """`roots`: the folders under which checkpoints may be written; None: anywhere."""
        self._shard_set, self._wake = shard_set, wake
        self._roots = None if roots is None else [open_place(root).real_address for root in roots]
        self._cutting: Cutting[Tensor] | None = None
        self._writing: _Writing | None = None
        self._waiting: dict[str, CollectCut] = {}  # by client
        self._written: OrderedDict[str, _Writing] = OrderedDict()  # by name: for those who did not ask yet
        self._copies = Copies()
        self._look_at_s = 0.0
        self._news = False  # from the thread that writes

    @property
    def active(self) -> bool:
        return self._cutting is not None and (bool(self._waiting) or bool(self._cutting.cuts) or self._is_writing)

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.over

    def handle(self, message: Question, now_s: float) -> list[Answer[Tensor]]:
        if message.epoch != self._shard_set.epoch or not self._shard_set.accepts_questions:
            return [self._refuse(message, "epoch", "the table of servers has changed")]
        if isinstance(message, BeginCut):
            return [self._begin(message, now_s)]
        if self._find(message.name) is None:
            return [self._refuse(message, "cut", "the table of servers has changed meanwhile; take it again")]
        self._waiting[message.client] = message
        self._news = True
        return self.poll(now_s)

    def poll(self, now_s: float) -> list[Answer[Tensor]]:
        """Time goes by, or shards have closed rounds."""
        cutting, writing = self._cutting, self._writing
        if cutting is None or writing is None or (now_s < self._look_at_s and not self._news):
            return []
        self._look_at_s, self._news = now_s + _LOOK_S, False
        if cutting.epoch != self._shard_set.epoch:
            cutting.fail("the table of servers has changed meanwhile; take it again")
        members = {member.worker: member for member in self._shard_set.decree.members} if self._shard_set.decree else {}
        for word, values in cutting.take(_AHEAD_BYTES - writing.queued_bytes, members):
            writing.add(word, values)
        if cutting.cuts and now_s - cutting.begun_s > _PATIENCE_S + writing.seconds_behind:
            cutting.fail(f"round {cutting.round} was not closed in time: {cutting.waits_for(members)}")
        if cutting.failed:
            writing.abandon(cutting.failed)
        elif not cutting.cuts:
            writing.finish()
        return self._answer_those_who_wait()

    def _answer_those_who_wait(self) -> list[Answer[Tensor]]:
        answers = []
        for client, message in list(self._waiting.items()):
            writing = self._find(message.name)
            if writing is None or writing.over:
                del self._waiting[client]
                answers.append(self._answer(message, writing))
        return answers

    def _find(self, name: str) -> "_Writing | None":
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

    def _begin(self, message: BeginCut, now_s: float) -> Answer[Tensor]:
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
                message.name, message.client, message.round, self._shard_set.epoch, shards, now_s, self._copies.make
            )
        except Refusal as refusal:
            return self._refuse(message, refusal.reason, refusal.text)
        self._writing = _Writing(message.folder, self._shard_set.name, self._shard_set.epoch, self._hear, self._copies)
        return Answer(message.client, CutBegun(message.sequence, self._shard_set.epoch))

    def _answer(self, message: CollectCut, writing: "_Writing | None") -> Answer[Tensor]:
        if writing is None:
            return self._refuse(message, "cut", "too many others were taken meanwhile; take it again")
        if writing.failed:
            return self._refuse(message, "cut", writing.failed)
        files, shards = tuple(writing.files), tuple(writing.shards)
        return Answer(message.client, CutWritten(message.sequence, writing.epoch, files, shards))

    def _refuse(self, message: Question, reason: Reason, text: str) -> Answer[Tensor]:
        line = text if reason != "cut" else f"the checkpoint failed on {self._shard_set.name}: {text}"
        return Answer(message.client, Refused(message.sequence, -1, reason, line, self._shard_set.epoch))


class _Writing:
    """A thread that writes shards, some 128 MB to a file, in the order in which they come."""

    def __init__(self, folder: str, server: str, epoch: int, wake: Callable[[], None], copies: Copies) -> None:
        self._folder, self._server, self.epoch, self._wake, self._copies = folder, server, epoch, wake, copies
        self._queue: deque[tuple[Snapshot, Sequence[Tensor]]] = deque()
        self._changed = threading.Condition()
        self._last = False
        self.queued_bytes = 0
        self.files: list[FileEntry] = []
        self.shards: list[ShardEntry] = []
        self.failed = ""
        self.over = False
        self._thread = threading.Thread(target=self._run, name="gradtide-checkpoint", daemon=True)
        self._thread.start()

    @property
    def seconds_behind(self) -> float:
        """How much longer copies may take because there is so much to write: patience is not for that."""
        return float("inf") if self.queued_bytes > _AHEAD_BYTES // 2 else 0.0

    def add(self, word: Snapshot, values: Sequence[Tensor]) -> None:
        with self._changed:
            self._queue.append((word, values))
            self.queued_bytes += _size(values)
            self._changed.notify()

    def finish(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._last = True
            self._changed.notify()

    def abandon(self, text: str) -> None:
        with self._changed:
            if not self.over:
                self.failed = self.failed or text
                self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            place = open_place(self._folder)
            while batch := self._next_batch():
                batch.sort(key=_is_ragged)
                name = f"{self._server}-{len(self.files) + 1:05d}.safetensors"
                self.files.append(write_file(place, "", name, [part_of(word, values) for word, values in batch]))
                self.shards += [entry_of(word, name) for word, _ in batch]
                with self._changed:
                    self.queued_bytes -= sum(_size(values) for _, values in batch)
                for _, values in batch:
                    self._copies.take_back(values)
                del batch
                self._wake()
        except GradtideError as error:
            self.failed = self.failed or str(error)
        except Exception as error:
            self.failed = self.failed or f"{type(error).__name__}: {error}"
            raise
        finally:
            self._queue.clear()
            self.over = True
            self._wake()

    def _next_batch(self) -> list[tuple[Snapshot, Sequence[Tensor]]]:
        """Enough for a file, or the rest; nothing when all is written, or none of it counts any more."""
        with self._changed:
            while not (self._last or self.failed or self.queued_bytes >= FILE_BYTES):
                self._changed.wait()
            batch: list[tuple[Snapshot, Sequence[Tensor]]] = []
            size = 0
            while self._queue and size < FILE_BYTES and not self.failed:
                batch.append(self._queue.popleft())
                size += _size(batch[-1][1])
            return batch


def _is_ragged(copied: tuple[Snapshot, Sequence[Tensor]]) -> bool:
    """Whatever comes after such a part in a file does not begin with a page, and so takes longer to write."""
    return _size(copied[1]) % PAGE_BYTES != 0


def _size(values: Sequence[Tensor]) -> int:
    return sum(value.nbytes for value in values)
