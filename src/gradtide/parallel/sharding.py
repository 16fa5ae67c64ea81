"""Each worker's part of every batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gradtide.errors import ConfigError
from gradtide.even_share import even_share
from gradtide.parallel.batch_parts import count_samples, cut
from gradtide.parallel.loaders import AgreedBatches, GivenBatches, has_agreeable_order, refuse_cut_loader
from gradtide.sync import Job, current_job
from gradtide.sync.job import BatchShare

__all__ = ["shard"]


class shard(Iterable[Any]):
    """Goes over a loader whose batch is the global one, and gives this worker its part of each batch.

    Tensors and arrays whose first dimension counts samples are cut, and so are lists of plain values, one a sample.
    Dicts, tuples, dataclasses and lists of tensors are entered. What every worker is to get as it is has to be named,
    by its key, or its place, or the path to it: `whole=["class_weights", "1", "extra.weights"]`.

    Parts differ by one sample at most; the model weighs them, so together they are exactly the batch. A worker for whom
    a small last batch has no sample gets one that counts nothing.

    All workers must go over the same batches. In a DataLoader over a Dataset with a length, all take the order that
    worker 0's sampler gives. The first batch of any other iterable is compared between workers, and a difference is
    refused. `check=False` does neither: then the loaders must give all workers the same by themselves.
    """

    def __init__(
        self, loader: Iterable[Any], *, whole: Sequence[str] = (), check: bool = True, job: Job | None = None
    ) -> None:
        if isinstance(whole, str):
            raise ConfigError(f"shard: whole= is a list of names; say whole=[{whole!r}]")
        refuse_cut_loader(loader)
        self._loader, self._whole, self._check = loader, tuple(whole), check
        self._job = current_job() if job is None else job

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        job, batches, this = self._job, self._batches(), object()
        try:
            for batch in batches:
                job.batches += 1
                yield self._part(batch, this)
                batches.go_on(batch)
                while job.undone:  # its step was lost with a worker: once more, cut for those who are left
                    job.undone = False
                    yield self._part(batch, this)
                    batches.go_on(batch)
                batches.finish()
        finally:
            job.shares.pop(this, None)
            job.share = next(reversed(job.shares.values()), None)  # of a loop around this one

    def _batches(self) -> AgreedBatches | GivenBatches:
        if self._check and has_agreeable_order(self._loader) and (self._job.size > 1 or self._job.elastic is not None):
            return AgreedBatches(self._loader, self._job)
        return GivenBatches(self._loader, self._job, self._check)

    def _part(self, batch: Any, loop: object) -> Any:
        job = self._job
        samples = count_samples(batch, self._whole)
        rank, size = job.held or (job.rank, job.size)
        begin, end = even_share(samples, rank, size) if rank >= 0 else (0, 0)
        job.share = job.shares[loop] = BatchShare(end - begin, samples)
        first, last = (0, 1) if begin == end else (begin, end)
        return cut(batch, first, last, self._whole)
