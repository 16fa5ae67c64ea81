"""The shares that all workers agree on: each tells the others what its parts cost, now and then, before a batch.

A batch is cut when it is given. What a loader reads ahead it reads for the shares that are expected then, and reads
again if there are others.
"""

from collections.abc import Sequence

import torch

from gradtide.errors import CommunicationError, ConfigError
from gradtide.events import SharesChanged
from gradtide.fair_share import Cost, even_shares
from gradtide.parallel.agreement import PURPOSE
from gradtide.parallel.balance import Balance
from gradtide.parallel.part_costs import CostMeter, Estimate
from gradtide.sync import Job
from gradtide.sync.watching.stopwatch import Stopwatch

__all__ = ["NOBODY_WAITS", "AgreedShares"]

NOBODY_WAITS = "balance is for workers that wait for each other; in async nobody does: leave balance out, or use 'bsp'"


class AgreedShares:
    """One worker's end of it, over all the loops that go over one loader."""

    def __init__(self, job: Job) -> None:
        self._job, self._generation = job, job.generation
        self._balance, self._meter, self._watch = Balance(), CostMeter(), Stopwatch()
        self._around: Stopwatch | None = None  # of a loop around this one

    def of(self, samples: int) -> tuple[int, ...]:
        """The sizes of all workers' parts of the next batch. All workers ask."""
        job = self._job
        job.balance = self
        if job.generation != self._generation:  # somebody came, went or died
            self._generation = job.generation
            self._balance.forget()
        if job.size > 1:
            self._check()
            if self._balance.wait:
                self._balance.wait -= 1
            else:
                self._compare(samples)
        return self._balance.shares(samples, job.size, job.least_part)

    def expected(self, samples: int) -> tuple[int, ...]:
        """The sizes that it would have, as far as is known now. Nobody else is asked."""
        if self._job.generation != self._generation:
            return even_shares(samples, self._job.size)
        return self._balance.shares(samples, self._job.size, self._job.least_part)

    def _check(self) -> None:
        job = self._job
        if job.nobody_waits:
            raise ConfigError(NOBODY_WAITS)
        if not job.meets:
            raise ConfigError(
                "balance needs workers that can tell each other how fast they are; over servers they can't in a job "
                "that may lose workers: leave balance out, or the servers, or --min-workers and --max-restarts"
            )

    def _compare(self, samples: int) -> None:
        job, group = self._job, self._job.group
        if group is None or group.size != job.size:
            return
        try:
            with group.purpose(PURPOSE):
                rows = group.all_gather(_encode(self._meter.estimate())).tolist()
        except CommunicationError:
            if job.elastic is None:
                raise
            return  # the next step finds the dead one; then all begin anew
        if self._balance.decide([_decode(row) for row in rows], samples, job.least_part):
            sizes = self._balance.shares(samples, job.size, job.least_part)
            job.news.append(SharesChanged("worker", list(sizes), self.explain()))

    def begin(self) -> None:
        """The part is given."""
        if self._job.stopwatch is not self._watch:
            self._around, self._job.stopwatch = self._job.stopwatch, self._watch
        self._watch.begin()

    def end(self) -> None:
        """The next one is asked for."""
        job, seconds = self._job, self._watch.end()
        alike = job.generation == self._generation and not job.undone  # else it waited for others to come or die
        if alike and job.share is not None and job.share.samples:
            self._meter.add(job.share.samples, seconds)

    def leave(self) -> None:
        """The loop is over."""
        if self._job.stopwatch is self._watch:
            self._job.stopwatch, self._around = self._around, None

    def explain(self) -> str:
        """Nothing where there is nobody to share with; but others may have ended before this worker."""
        return self._balance.explain() if self._job.size > 1 or self._balance.measured > 1 else ""


def _encode(estimate: Estimate | None) -> torch.Tensor:
    if estimate is None:
        return torch.zeros(4, dtype=torch.float64)
    cost = estimate.cost
    row = [cost.fixed_s, cost.sample_s, estimate.doubt, float(estimate.measurements)]
    return torch.tensor(row, dtype=torch.float64)


def _decode(row: Sequence[float]) -> Estimate | None:
    fixed_s, sample_s, doubt, measurements = row
    return Estimate(Cost(fixed_s, sample_s), doubt, int(measurements)) if measurements else None
