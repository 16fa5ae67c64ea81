"""Tensors, a Dataset or a DataLoader as one kind of source of batches, read ahead of the computation."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gradtide.errors import ConfigError, DataError

__all__ = ["Batch", "BatchSource", "StepBatch", "StepSource", "accumulated", "as_source", "read_ahead"]

Batch = tuple[Tensor, Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Where batches come from."""

    read: Callable[[int], Iterable[Batch]]  # epoch -> its batches
    batch_size: int | None  # None where only the loader knows
    batches: int | None  # of an epoch; None where only reading tells


class StepBatch(NamedTuple):
    """What one step learns from: so many batches as one."""

    inputs: Tensor
    targets: Tensor
    batches: int


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where the batches of steps come from."""

    read: Callable[[int], Iterable[StepBatch]]  # epoch -> its steps
    batch_size: int | None  # of a step; None where only the loader knows
    batches: int | None  # so many steps in an epoch; None where only reading tells


def accumulated(source: BatchSource, accumulate: int) -> StepSource:
    """A step for every `accumulate` batches; the last one of an epoch has those that are left."""
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ConfigError(f"accumulate={accumulate!r} makes no sense; a step takes 1 batch or more")

    def read(epoch: int) -> Iterator[StepBatch]:
        batches = iter(source.read(epoch))
        while group := list(islice(batches, accumulate)):
            inputs, targets = zip(*group, strict=True)
            yield StepBatch(_one("inputs", inputs), _one("targets", targets), len(group))

    size = None if source.batch_size is None else source.batch_size * accumulate
    return StepSource(read, size, None if source.batches is None else -(-source.batches // accumulate))


def _one(what: str, parts: tuple[Tensor, ...]) -> Tensor:
    first = parts[0]
    for part in parts[1:]:
        if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise DataError(
                f"accumulate= makes one batch of several, but the {what} of one are {tuple(first.shape)} {first.dtype} "
                f"and of another {tuple(part.shape)} {part.dtype}; make batches alike but for their number of samples"
            )
    return first if len(parts) == 1 else torch.cat(parts)


def as_source(data: Any, batch_size: int, seed: int = 0, shuffle: bool = True) -> BatchSource:
    """Accepts (inputs, targets) as tensors, a torch Dataset, or a DataLoader (which keeps its own batch size)."""
    if isinstance(data, DataLoader):
        return _from_loader(data)
    if batch_size < 1:
        raise ConfigError(f"batch size {batch_size}; it must be 1 or more")
    if isinstance(data, Dataset):
        return _from_dataset(data, batch_size, seed, shuffle)
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return _from_tensors((data[0], data[1]), batch_size, seed, shuffle)
    raise DataError(f"can't train on {type(data).__name__}; pass tensors (inputs, targets), a Dataset or a DataLoader")


def _from_tensors(data: Batch, batch_size: int, seed: int, shuffle: bool) -> BatchSource:
    inputs, targets = data
    count = len(inputs)
    if count == 0 or len(targets) != count:
        raise DataError(f"the data has {count} inputs and {len(targets)} targets; it needs as many of each, 1 or more")

    def read(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(count, generator=_generator(seed, epoch)) if shuffle else None
        for start in range(0, count, batch_size):
            chosen = slice(start, start + batch_size) if order is None else order[start : start + batch_size]
            yield inputs[chosen], targets[chosen]

    return BatchSource(read, min(batch_size, count), -(-count // batch_size))


def _from_dataset(data: Dataset[Any], batch_size: int, seed: int, shuffle: bool) -> BatchSource:
    sized = not isinstance(data, IterableDataset)
    if sized and len(data) == 0:  # type: ignore[arg-type]
        raise DataError("the Dataset is empty; it needs one sample or more")

    def read(epoch: int) -> Iterable[Batch]:
        generator = _generator(seed, epoch)
        return _pairs(DataLoader(data, batch_size, shuffle=shuffle and sized, generator=generator))

    samples = len(data) if sized else None  # type: ignore[arg-type]
    return BatchSource(read, min(batch_size, samples or batch_size), samples and -(-samples // batch_size))


def _from_loader(loader: DataLoader[Any]) -> BatchSource:
    batches = None if isinstance(loader.dataset, IterableDataset) else len(loader)
    if batches == 0:
        raise DataError("the DataLoader has no batch; give it data, or drop_last=False")
    return BatchSource(lambda epoch: _pairs(loader), loader.batch_size, batches)


def _pairs(batches: Iterable[Any]) -> Iterator[Batch]:
    for batch in batches:
        if not (
            isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
        ):
            raise DataError(
                "each batch must be a pair of tensors (inputs, targets); give the DataLoader such a collate_fn"
            )
        yield batch[0], batch[1]


def _generator(seed: int, epoch: int) -> torch.Generator:
    # Another odd factor than 1, so that seed 0 in epoch 1 is not seed 1 in epoch 0.
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields the items while a thread of its own already works on the next one."""
    iterator, end = iter(items), object()
    initializer = partial(torch.set_num_threads, 1)  # reading must not take the devices' cores
    with ThreadPoolExecutor(1, thread_name_prefix="gradtide reader", initializer=initializer) as reader:
        upcoming = reader.submit(next, iterator, end)
        while (item := upcoming.result()) is not end:
            upcoming = reader.submit(next, iterator, end)
            yield item  # type: ignore[misc]
