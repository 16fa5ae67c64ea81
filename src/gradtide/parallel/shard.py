"""Each rank's part of every batch."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.sync import Job, current_job
from gradtide.sync.job import Share

__all__ = ["shard"]


class shard(Iterable[Any]):
    """Goes over a loader whose batch is the global one, and gives this worker its part of each batch.

    A batch is anything made of tensors whose first dimension counts samples. Parts differ by one sample at most; the
    model weighs them, so together they are exactly the batch. All workers' loaders must give the same batches (the same
    seed, or no shuffling). A worker for whom a small last batch has no sample gets one that counts nothing.
    """

    def __init__(self, loader: Iterable[Any], *, job: Job | None = None) -> None:
        self._loader, self._job = loader, current_job() if job is None else job

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in self._loader:
                self._job.batches += 1
                if self._job.behind:  # a worker that came later begins where the others are
                    self._job.behind -= 1
                    continue
                yield self._part(batch)
                while self._job.undone:  # its step was lost with a worker: once more, cut for those who are left
                    self._job.undone = False
                    yield self._part(batch)
        finally:
            self._job.share = None

    def _part(self, batch: Any) -> Any:
        job = self._job
        samples = _samples(batch)
        begin, end = (samples * rank // job.size for rank in (job.rank, job.rank + 1))
        job.share = Share(end - begin, samples)
        first, last = (0, 1) if begin == end else (begin, end)
        return pytree.tree_map(lambda leaf: leaf[first:last] if isinstance(leaf, Tensor) else leaf, batch)


def _samples(batch: Any) -> int:
    counts = {len(leaf) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()}
    if len(counts) != 1 or 0 in counts:
        found = " and ".join(str(count) for count in sorted(counts)) or "no"
        raise ConfigError(
            f"shard can't cut a batch whose tensors have {found} samples; each needs as many, 1 or more, in its first "
            "dimension"
        )
    return counts.pop()
