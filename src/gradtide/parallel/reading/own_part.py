"""Where a worker's part of a batch begins and ends: now, and as far as can be told ahead."""

from collections.abc import Sequence

from gradtide.errors import ConfigError
from gradtide.even_share import even_share
from gradtide.parallel.agreed_shares import AgreedShares
from gradtide.sync import Job

__all__ = ["OwnPart"]


class OwnPart:
    """Of even shares, or of those that follow speed. (It knows no loader: what a loader holds must not hold it.)"""

    def __init__(self, job: Job, shares: AgreedShares | None) -> None:
        self._job, self._shares = job, shares

    def decide(self, samples: int) -> tuple[int, int]:
        """Of the batch that is given now. All workers ask."""
        if self._shares is None:
            return self._even(samples)
        if self._job.in_windows and self._job.elastic is not None:
            raise ConfigError(
                "balance=True with Local, in a job that may lose or gain workers: parts of a window can't be cut "
                "anew in it; leave balance= or --min-workers and the like out"
            )
        return self._slice(self._shares.of(samples))

    def expect(self, samples: int) -> tuple[int, int]:
        """Of a batch that is read ahead; one sample where there is none for us."""
        begin, end = self._even(samples) if self._shares is None else self._slice(self._shares.expected(samples))
        return (0, 1) if begin == end else (begin, end)

    def _even(self, samples: int) -> tuple[int, int]:
        rank, size = self._job.held or (self._job.rank, self._job.size)
        return even_share(samples, rank, size) if rank >= 0 else (0, 0)

    def _slice(self, sizes: Sequence[int]) -> tuple[int, int]:
        rank, _ = self._job.held or (self._job.rank, self._job.size)
        return sum(sizes[:rank]), sum(sizes[: rank + 1])
