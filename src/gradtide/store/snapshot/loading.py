"""A server's shards from a checkpoint: read in a thread of its own, while the server goes on to beat."""

import logging
import threading
from collections.abc import Callable

from torch import Tensor

from gradtide.checkpoint.manifest import read_manifest
from gradtide.checkpoint.places import open_place
from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.image import revive
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.shard_file import read_shards
from gradtide.store.wire.messages import Source

__all__ = ["Loader"]

_AGAIN_S = 2.0  # between two tries: a disk or an object store may come back
_log = logging.getLogger("gradtide.server")


class Loader:
    """Loads what `host.to_load` wants. A server answers nobody before that is done."""

    def __init__(self, shard_set: ShardSet[Tensor], wake: Callable[[], None]) -> None:
        self._shard_set, self._wake = shard_set, wake
        self._reading: _Reading | None = None
        self._not_before_s = 0.0

    @property
    def active(self) -> bool:
        return bool(self._shard_set.to_load)

    def poll(self, now_s: float) -> list[Answer[Tensor]]:
        """Begins to read, or takes over what was read; returns what can be told to clients."""
        reading = self._reading
        if reading is None:
            if now_s >= self._not_before_s:
                source = min(self._shard_set.to_load.values(), key=lambda source: source.epoch)
                wanted = frozenset(number for number, of in self._shard_set.to_load.items() if of == source)
                self._reading = _Reading(source, wanted, self._shard_set.arithmetic, self._wake)
            return []
        if not reading.over:
            return []
        self._reading = None
        if reading.failed:
            _log.error("can't begin with the checkpoint %s: %s", reading.source.folder, reading.failed)
            self._not_before_s = now_s + _AGAIN_S
            return []
        if not {number for number, of in self._shard_set.to_load.items() if of == reading.source} <= reading.wanted:
            return []  # the table has changed, and more is wanted now: once more
        return self._shard_set.install(reading.shards, reading.source)


class _Reading:
    def __init__(
        self, source: Source, wanted: frozenset[int], arithmetic: Arithmetic[Tensor], wake: Callable[[], None]
    ) -> None:
        self.source, self.wanted, self._arithmetic, self._wake = source, wanted, arithmetic, wake
        self.shards: list[Shard[Tensor]] = []
        self.failed = ""
        self.over = False
        threading.Thread(target=self._run, name="gradtide-load", daemon=True).start()

    def _run(self) -> None:
        try:
            place = open_place(self.source.folder)
            for word, values in read_shards(place, read_manifest(place), self.wanted):
                self.shards.append(revive(word, values, self._arithmetic))
        except Exception as error:
            self.failed = str(error)
        self.over = True
        self._wake()
