"""Writes a server's part of a checkpoint to files, from a thread of its own."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from gradtide.checkpoint.direct import PAGE_BYTES
from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.tensor_file import write_file
from gradtide.errors import GradtideError
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.copies import Copies
from gradtide.store.snapshot.cutter import AHEAD_BYTES, Cutter
from gradtide.store.snapshot.shard_file import entry_of, part_of
from gradtide.store.wire.messages import Snapshot

__all__ = ["FileWriting", "file_cutter"]

FILE_BYTES = AHEAD_BYTES // 2  # about how much goes into one file


def file_cutter(
    shard_set: ShardSet[Tensor], wake: Callable[[], None], roots: Sequence[str] | None = None
) -> Cutter[Tensor]:
    """A cutter whose checkpoints are files under one of the `roots`; None: anywhere."""
    copies = Copies()

    def begin_writing(folder: str, hear: Callable[[], None]) -> FileWriting:
        return FileWriting(folder, shard_set.name, shard_set.epoch, hear, copies)

    return Cutter(shard_set, wake, copies.make, begin_writing, roots)


class FileWriting:
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
        return float("inf") if self.queued_bytes > AHEAD_BYTES // 2 else 0.0

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
