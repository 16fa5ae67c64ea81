"""fit's batches of which a worker reads its part alone: the indices of a step's batches are one list, which is cut."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

from gradtide.parallel.reading.eligible import why_whole
from gradtide.parallel.reading.part_batch import PartBatch
from gradtide.parallel.reading.part_reader import PartReader
from gradtide.parallel.reading.replay import replay
from gradtide.train.source import StepBatch, StepSource, as_pair

__all__ = ["as_step", "loader_of_parts", "read_parts"]


def loader_of_parts(source: StepSource, epoch: int) -> DataLoader[Any] | None:
    """What can be asked for some samples of a batch; None if whole batches have to be read."""
    load = None if source.of is None else source.of.loader
    if load is None:
        return None
    loader = load(epoch)
    in_order = loader.num_workers < 2 or loader.in_order
    return loader if in_order and not why_whole(loader, None, (), True) else None


def read_parts(
    loader: DataLoader[Any], reader: PartReader, accumulate: int, done: int, number: int
) -> Iterator[PartBatch]:
    """Our part of every step of an epoch. Of those that are `done`, only the first is read, to see whether the dataset
    draws random numbers: then all are, and so they are by processes, which would draw others otherwise."""

    processes = bool(loader.num_workers)  # what follows must not hold the loader, which may hold it with its processes

    def steps(own: Iterator[Any]) -> Iterator[Any]:
        lists = _joined(own, accumulate)
        first = list(islice(lists, 1))
        yield from first
        yield from lists if reads_all() else islice(lists, max(0, done - 1), None)

    def reads_all() -> bool:
        return processes or reader.whole

    parts = reader.batches(replay(loader, lambda own: reader.follow(steps(own)), number))
    for part in islice(parts, 1):
        yield part
        if not reads_all():
            yield from [part] * (done - 1)  # they stand for those that nobody reads
    yield from parts


def _joined(batches: Iterator[Any], accumulate: int) -> Iterator[list[Any]]:
    while group := list(islice(batches, accumulate)):
        yield list(chain.from_iterable(group))


def as_step(given: Any, source: StepSource, step: int) -> StepBatch:
    """What a step learns from, of its whole batches or of what was read of them."""
    if isinstance(given, StepBatch):
        return given
    assert source.of is not None
    inputs, targets = as_pair(given, source.of.weighted)
    left = source.accumulate if source.of.batches is None else source.of.batches - step * source.accumulate
    return StepBatch(inputs, targets, max(1, min(source.accumulate, left)))
