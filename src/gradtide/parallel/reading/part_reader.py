"""A DataLoader's batches, of which only this worker's part is read.

A loader reads ahead, and shares may change before a batch is given: then what was read for other shares is read again.
"""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple

from gradtide.errors import ConfigError, DataError
from gradtide.parallel.batch_parts import count_samples
from gradtide.parallel.reading.draws import Draws, NoDraws
from gradtide.parallel.reading.eligible import draws_nothing
from gradtide.parallel.reading.part_batch import PartBatch
from gradtide.parallel.reading.replay import plain_copy, read_alone

__all__ = ["PartReader"]

Bounds = Callable[[int], tuple[int, int]]  # of so many samples: where this worker's part begins and ends, never empty

_END = object()


class _PartAsked(NamedTuple):
    """What the loader was asked to read."""

    indices: Any
    begin: int
    end: int

    @property
    def part(self) -> Any:
        return self.indices[self.begin : self.end]


class PartReader:
    """One iteration over a loader: `follow` is between its sampler and it, `batches` behind it."""

    def __init__(self, loader: Any, bounds: Bounds, seed: int, draws: Draws) -> None:
        self._loader, self._bounds, self._seed = plain_copy(loader), bounds, seed
        self._ahead = deque[_PartAsked]()  # not read yet, or not given yet
        self._again = deque[_PartAsked]()  # of these the first ones, as they are read once more
        self._reading_again: Iterator[Any] = iter(())
        self._lists = (list,) if loader.batch_sampler is None else (list, tuple)  # a tuple may be one sample's key
        self._lock = Lock()  # one thread may read ahead while another finds that shares have changed
        self.whole = False  # the dataset draws random numbers in this process: all is read, as in one process
        self._draws = NoDraws() if loader.num_workers or draws_nothing(loader.dataset) else draws

    def follow(self, items: Iterator[Any]) -> Iterator[Any]:
        """What the loader is to read, of each item of its sampler."""
        for item in items:
            if not isinstance(item, self._lists) or not item:
                raise ConfigError(
                    f"shard(..., read='part'): this sampler gives {item!r:.40} for a batch, and not the indices of its "
                    "samples; say read='whole'"
                )
            asked = self._ask(item)
            self._ahead.append(asked)
            self._draws.enter()
            yield asked.part

    def batches(self, loaded: Iterator[Any]) -> Iterator[PartBatch]:
        while True:
            with self._lock:
                found = self._next(loaded)
            if found is None:
                return
            asked, data = found
            self._check(data, asked.end - asked.begin)
            yield PartBatch(asked.indices, asked.begin, asked.end, data, self._read_again)

    def _next(self, loaded: Iterator[Any]) -> tuple[_PartAsked, Any] | None:
        try:
            data = next(loaded, _END)
        finally:
            drew = self._draws.leave()
        if data is _END:
            return None
        asked = self._ahead.popleft()
        if drew:
            return self._read_whole(asked)
        return (self._again.popleft(), next(self._reading_again)) if self._again else (asked, data)

    def _ask(self, indices: Any) -> _PartAsked:
        return _PartAsked(indices, *((0, len(indices)) if self.whole else self._bounds(len(indices))))

    def _read_whole(self, asked: _PartAsked) -> tuple[_PartAsked, Any]:
        """The dataset drew: from here on everything is drawn as in one process."""
        self.whole, self._draws = True, NoDraws()
        asked = self._ask(asked.indices)
        return asked, next(read_alone(self._loader, [asked.part], self._seed))

    def _read_again(self, batch: PartBatch, begin: int, end: int) -> None:
        with self._lock:
            asked, data = self._read_with_all_ahead(_PartAsked(batch.indices, begin, end))
        self._check(data, asked.end - asked.begin)
        batch.begin, batch.end, batch.data = asked.begin, asked.end, data

    def _read_with_all_ahead(self, first: _PartAsked) -> tuple[_PartAsked, Any]:
        """And with it all that was read ahead for other shares than those of now."""
        ahead = list(self._ahead)
        wanted = deque(self._ask(asked.indices) for asked in ahead)
        self._seed += 1
        if list(wanted) == [*self._again, *ahead[len(self._again) :]]:
            reading = read_alone(self._loader, [first.part], self._seed)
        else:
            reading = read_alone(self._loader, [first.part, *(asked.part for asked in wanted)], self._seed)
            self._again, self._reading_again = wanted, reading
        self._draws.enter()
        try:
            data = next(reading)
        finally:
            drew = self._draws.leave()
        return self._read_whole(first) if drew else (first, data)

    def _check(self, data: Any, samples: int) -> None:
        found = count_samples(data)
        if found != samples:
            raise DataError(
                f"shard: the DataLoader made {found} samples of {samples} indices, so a worker's part can't be read "
                "alone; say shard(..., read='whole')"
            )
