"""Tensors, arrays, a Dataset, a DataLoader or a generator as one kind of source of batches, which is read ahead."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gradtide.collective import Group
from gradtide.errors import ConfigError, DataError
from gradtide.parallel.devices.nested import length
from gradtide.train.steering.batches import as_batch, is_batches, is_weighted, with_targets

__all__ = [
    "Batch",
    "BatchSource",
    "ReadAhead",
    "StepBatch",
    "StepSource",
    "accumulated",
    "alike",
    "as_first_worker",
    "as_pair",
    "as_source",
    "read_ahead",
    "with_equal_weights",
    "with_targets",
]

Batch = tuple[Any, Any]  # inputs and targets: tensors, or dicts, tuples and lists of them
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Where batches come from."""

    read: Callable[[int], Iterable[Batch]]  # epoch -> its batches
    batch_size: int | None  # None where only the loader knows
    batches: int | None  # of an epoch; None where only reading tells
    weighted: bool = False  # whether targets are pairs, of targets and of what each sample counts
    loader: Callable[[int], DataLoader[Any]] | None = None  # epoch -> what it reads them with, if that has indices


class StepBatch(NamedTuple):
    """What one step learns from: so many batches as one."""

    inputs: Any
    targets: Any
    batches: int


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where the batches of steps come from."""

    read: Callable[[int], Iterable[StepBatch]]  # epoch -> its steps
    batch_size: int | None  # of a step; None where only the loader knows
    batches: int | None  # so many steps in an epoch; None where only reading tells
    of: BatchSource | None = None  # whose batches a step takes
    accumulate: int = 1  # so many of them


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
    steps = None if source.batches is None else -(-source.batches // accumulate)
    return StepSource(read, size, steps, source, accumulate)


def _one(what: str, parts: tuple[Any, ...]) -> Any:
    if len(parts) == 1:
        return parts[0]
    flat = [pytree.tree_flatten(part) for part in parts]
    for leaves, spec in flat[1:]:
        first = flat[0][0]
        alike = spec == flat[0][1] and [_kind(leaf) for leaf in leaves] == [_kind(leaf) for leaf in first]
        if not alike:
            raise DataError(
                f"accumulate= makes one batch of several, but the {what} of one are {_shown(first)} and of another "
                f"{_shown(leaves)}; make batches alike but for their number of samples"
            )
    joined = [torch.cat(same) for same in zip(*(leaves for leaves, _ in flat), strict=True)]
    return pytree.tree_unflatten(joined, flat[0][1])


def _kind(leaf: Tensor) -> tuple[Any, ...]:
    return tuple(leaf.shape[1:]), leaf.dtype


def _shown(leaves: list[Tensor]) -> str:
    return ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves)


def as_source(data: Any, batch_size: int, seed: int = 0, shuffle: bool = True, *, targets: bool = True) -> BatchSource:
    """Accepts (inputs, targets), or (inputs, targets, weights), as tensors or arrays, or dicts, tuples and lists of
    them; a torch Dataset; a DataLoader, another iterable of batches or a function that gives one (which keep their own
    batch size). Without `targets` a batch may be inputs alone."""
    if isinstance(data, DataLoader):
        return _from_loader(data, targets)
    if batch_size < 1:
        raise ConfigError(f"batch size {batch_size}; it must be 1 or more")
    if isinstance(data, Dataset):
        return _from_dataset(data, batch_size, seed, shuffle, targets)
    if isinstance(data, tuple | list | Mapping) and not is_batches(data):
        return _from_tensors(*as_batch(data), batch_size, seed, shuffle)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Tensor | np.ndarray):
        return BatchSource(lambda epoch: _pairs(data, targets=targets), None, None)
    if callable(data) and not isinstance(data, type):
        return BatchSource(lambda epoch: _pairs(data(), targets=targets), None, None)
    raise DataError(
        f"can't read batches from {type(data).__name__}; pass {'(inputs, targets)' if targets else 'inputs'} as "
        "tensors or arrays, a Dataset, a DataLoader, or a function that gives the batches of an epoch"
    )


def _from_tensors(inputs: Any, targets: Any, weighted: bool, batch_size: int, seed: int, shuffle: bool) -> BatchSource:
    count, labels = length(inputs), length(targets)
    if count == 0 or labels != count:
        raise DataError(f"the data has {count} inputs and {labels} targets; it needs as many of each, 1 or more")

    def read(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(count, generator=_generator(seed, epoch)) if shuffle else None
        for start in range(0, count, batch_size):
            chosen = slice(start, start + batch_size) if order is None else order[start : start + batch_size]
            yield _chosen(inputs, chosen), _chosen(targets, chosen)

    return BatchSource(read, min(batch_size, count), -(-count // batch_size), weighted)


def _chosen(value: Any, chosen: Any) -> Any:
    return value[chosen] if isinstance(value, Tensor) else pytree.tree_map(lambda leaf: leaf[chosen], value)


def _from_dataset(data: Dataset[Any], batch_size: int, seed: int, shuffle: bool, targets: bool) -> BatchSource:
    sized = not isinstance(data, IterableDataset)
    if sized and len(data) == 0:  # type: ignore[arg-type]
        raise DataError("the Dataset is empty; it needs one sample or more")

    def load(epoch: int) -> DataLoader[Any]:
        return DataLoader(data, batch_size, shuffle=shuffle and sized, generator=_generator(seed, epoch))

    def read(epoch: int) -> Iterable[Batch]:
        return _pairs(load(epoch), weighted, targets=targets)

    weighted = is_weighted(data)
    samples = len(data) if sized else None  # type: ignore[arg-type]
    size, batches = min(batch_size, samples or batch_size), samples and -(-samples // batch_size)
    return BatchSource(read, size, batches, weighted, load)


def _from_loader(loader: DataLoader[Any], targets: bool) -> BatchSource:
    batches = None if isinstance(loader.dataset, IterableDataset) else len(loader)
    if batches == 0:
        raise DataError("the DataLoader has no batch; give it data, or drop_last=False")
    weighted = is_weighted(loader.dataset)
    return BatchSource(
        lambda epoch: _pairs(loader, weighted, targets=targets),
        loader.batch_size,
        batches,
        weighted,
        lambda epoch: loader,
    )


def _pairs(batches: Iterable[Any], weighted: bool = False, *, targets: bool = True) -> Iterator[Batch]:
    for batch in batches:
        yield as_pair(batch if targets else with_targets(batch), weighted)


def as_pair(batch: Any, weighted: bool) -> Batch:
    """A loader's batch as inputs and targets."""
    inputs, targets, has_weights = as_batch(batch)
    if has_weights != weighted:
        raise DataError(
            "a batch has sample weights, which must be known before the first: give (inputs, targets, weights) as "
            "tensors, or a TensorDataset of the three"
        )
    return inputs, targets


def alike(batches: Iterable[T], seed: int) -> Iterator[T]:
    """In an order of our own for all workers, where they don't meet to agree on one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        iterator = iter(batches)
        first = list(islice(iterator, 1))
    return chain(first, iterator)


def as_first_worker(batches: Iterable[T], group: Group | None) -> Iterator[T]:
    """In the order that worker 0 gives, from where torch's own generator is there: that of one process. All call it.

    Generators that are alike stay alike, and are where one process's would be; another worker's own stays as it is.
    """
    if group is None:
        return iter(batches)
    own = torch.get_rng_state()
    first_workers = own.clone()
    with group.purpose("where they begin to go over a DataLoader, which all workers do together"):
        group.broadcast(first_workers)
    torch.set_rng_state(first_workers)
    iterator = iter(batches)
    first = list(islice(iterator, 1))
    if not torch.equal(own, first_workers):
        torch.set_rng_state(own)
    return chain(first, iterator)


def with_equal_weights(source: BatchSource) -> BatchSource:
    """Where other data has sample weights: these samples count alike."""

    def read(epoch: int) -> Iterator[Batch]:
        for inputs, targets in source.read(epoch):
            yield inputs, (targets, torch.ones(length(targets), dtype=torch.float64))

    return replace(source, read=read, weighted=True, loader=None)


def _generator(seed: int, epoch: int) -> torch.Generator:
    # Another odd factor than 1, so that seed 0 in epoch 1 is not seed 1 in epoch 0.
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


class ReadAhead(Iterable[T]):
    """The items, while a thread of its own already works on the next one."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items, self._upcoming = items, Future[Any]()
        self._upcoming.set_result(None)

    def __iter__(self) -> Iterator[T]:
        iterator, end = iter(self._items), object()
        initializer = partial(torch.set_num_threads, 1)  # reading must not take the devices' cores
        with ThreadPoolExecutor(1, thread_name_prefix="gradtide reader", initializer=initializer) as reader:
            self._upcoming = reader.submit(next, iterator, end)
            while (item := self._upcoming.result()) is not end:
                self._upcoming = reader.submit(next, iterator, end)
                yield item

    def settle(self) -> None:
        """Until the next one is read: nothing is drawn before another item is asked for."""
        wait([self._upcoming])


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    return iter(ReadAhead(items))
