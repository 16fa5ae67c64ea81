"""A DataLoader with another sampler: torch lets nobody set that afterwards, so a copy goes over the data."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

__all__ = ["plain_copy", "read_alone", "replay", "sampler_of", "seed_of_worker"]

_KEPT = "_gradtide_replay"  # on a loader whose processes persist: they know the sampler that they were started with
_SPREAD = 0x9E3779B97F4A7C15  # so that neighbouring seeds and workers have nothing in common


def sampler_of(loader: Any) -> Any:
    """What gives the loader an index, or a list of them, for each batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def seed_of_worker(seed: int, number: int) -> int:
    """A seed of a worker's own, where all have the same."""
    return (seed + (number + 1) * _SPREAD) % (1 << 63)


def replay(loader: Any, make: Callable[[Iterator[Any]], Iterator[Any]], number: int | None = None) -> Iterator[Any]:
    """Goes over the loader, with what is made of its sampler's iterator. `number`: this worker's, if what its processes
    draw is to be its own and not what those of workers with the same seed draw."""
    like = copy.copy(loader)
    replayed, iterator = loader.__dict__.get(_KEPT) or (_Replay(sampler_of(loader)), None)
    replayed.make = make
    if number is not None and loader.num_workers and iterator is None:  # it will draw a seed for its processes
        replayed.make = _SeedApart(loader, like, number, make)
    _set_sampler(like, replayed)
    like.__dict__["_iterator"] = iterator
    batches: Iterator[Any] = iter(like)
    replayed.make = None  # a loader that its user has forgotten ends its processes: it must not hold itself
    if loader.persistent_workers:
        loader.__dict__[_KEPT] = replayed, like._iterator
    return batches


def plain_copy(loader: Any) -> Any:
    """The loader's settings, without its processes: whoever keeps it doesn't keep them."""
    like = copy.copy(loader)
    like.__dict__.pop(_KEPT, None)
    like.__dict__["_iterator"] = None
    return like


def read_alone(loader: Any, items: list[Any], seed: int) -> Iterator[Any]:
    """What the loader makes of these items of a sampler, by processes of its own if it has any. Draws nothing."""
    like = plain_copy(loader)
    _set_sampler(like, items)
    like.__dict__["persistent_workers"] = False
    like.num_workers = min(like.num_workers, len(items))
    like.generator = torch.Generator().manual_seed(seed % (1 << 63))
    return iter(like)


def _set_sampler(like: Any, sampler: Any) -> None:
    like.__dict__["sampler" if like.batch_sampler is None else "batch_sampler"] = sampler


class _SeedApart:
    """The loader's generator gives what torch would take of it, just then; the processes get another seed."""

    def __init__(self, loader: Any, like: Any, number: int, make: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._loader, self._like, self._number, self._make = loader, like, number, make
        self._drawn = False  # torch begins with the sampler twice, and draws a seed after the first time

    def __call__(self, own: Iterator[Any]) -> Iterator[Any]:
        if not self._drawn:
            self._drawn = True
            drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator).item())
            self._like.generator = torch.Generator().manual_seed(seed_of_worker(drawn, self._number))
        return self._make(own)


class _Replay(Iterable[Any]):
    """What a loader takes for its sampler."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.make: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self.make(iter(self._sampler))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._sampler)
