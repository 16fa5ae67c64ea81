"""Where batches come from: a DataLoader in an order that all workers agree on, or any iterable, compared."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from gradtide.errors import ConfigError
from gradtide.parallel.agreement import comes_and_goes, compare, compare_over_store, note_loop, take_up_loop
from gradtide.parallel.reading.order import Order, is_seeded
from gradtide.parallel.reading.part_batch import digest_batch
from gradtide.parallel.reading.part_reader import PartReader
from gradtide.parallel.reading.replay import replay, sampler_of
from gradtide.sync import Job

__all__ = ["AgreedBatches", "GivenBatches", "refuse_cut_loader"]

_END = object()


def refuse_cut_loader(loader: Any) -> None:
    """One that gives each worker samples of its own must not be cut again."""
    if not isinstance(loader, DataLoader):
        return
    for sampler in (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            raise ConfigError(
                "this DataLoader's DistributedSampler gives each worker samples of its own already; leave shard out, "
                "or say DataLoader(..., shuffle=True) with the batch size of all workers together, and keep shard"
            )


class GivenBatches(Iterable[Any]):
    """An iterable's batches as they come. The first, and those after workers came or went, are compared."""

    def __init__(self, loader: Iterable[Any], job: Job, check: bool) -> None:
        self._loader, self._job, self._check = loader, job, check
        self.skipped = 0  # batches that the others were given before we came, since the last that was given here

    def __iter__(self) -> Iterator[Any]:
        job, first, begins, batches = self._job, True, self._check, iter(self._loader)
        while True:
            batch = next(batches, _END)
            if begins:
                told = partial(digest_batch, None if batch is _END else batch)
                compare_over_store(job, told)
                note_loop(job, told, "", take_up_loop(job, None))
            begins = False
            if job.behind:  # a worker that came later begins where the others are
                if batch is _END:
                    return
                job.behind, job.batches, self.skipped = job.behind - 1, job.batches + 1, self.skipped + 1
                continue
            if self._check and job.held is None and (first or job.agreed != job.generation):
                compare(job, partial(digest_batch, None if batch is _END else batch))
            first = False
            if batch is _END:
                return
            yield batch

    def go_on(self, batch: Any) -> None:
        """After a batch was trained on: those who came meanwhile must have the one that is next, if it comes again."""
        if self._check and self._job.undone and self._job.agreed != self._job.generation:
            compare(self._job, partial(digest_batch, batch))

    def finish(self) -> None:
        """What was given is trained on, and will not be given again."""
        self.skipped = 0


class AgreedBatches(Iterable[Any]):
    """A DataLoader's batches in the order that worker 0's sampler gives, loaded as the loader would: whole, or by
    `reader`, who reads a part of each."""

    def __init__(self, loader: Any, job: Job, reader: PartReader | None = None) -> None:
        sampler = sampler_of(loader)
        if loader.num_workers > 1 and not loader.in_order:
            raise ConfigError("shard: DataLoader(in_order=False) gives each worker another order; leave in_order out")
        if comes_and_goes(job) and not is_seeded(sampler):
            raise ConfigError(
                "over servers a worker that is started again can't ask the others for the order of this DataLoader; "
                "say DataLoader(..., generator=torch.Generator().manual_seed(0)), or check=False if its sampler gives "
                "all workers the same"
            )
        self._loader, self._job, self._sampler, self._reader = loader, job, sampler, reader
        self._order: Order

    def __iter__(self) -> Iterator[Any]:
        number = None if self._reader is None else self._job.number
        batches = replay(self._loader, self._begin, number)
        for batch in batches if self._reader is None else self._reader.batches(batches):
            self._order.given += 1
            yield batch

    def _begin(self, own: Iterator[Any]) -> Iterator[Any]:
        self._order = Order(self._job, own, self._sampler)
        return self._order if self._reader is None else self._reader.follow(self._order)

    def go_on(self, batch: Any) -> None:
        """After a batch was trained on: agrees with those who came meanwhile on what is next."""
        self._order.go_on()

    @property
    def skipped(self) -> int:
        """Batches that the others were given before we came, since the last that was given here."""
        return self._order.skipped_now

    def finish(self) -> None:
        """What was given is trained on, and will not be given again."""
        self._order.finish()
