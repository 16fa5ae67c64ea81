"""fit's run as one worker of a job: the same loop, with our part of every batch and one model for all workers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import torch
from torch import nn

from gradtide.errors import ConfigError, RolledBack
from gradtide.events import Emit, Event, ParametersUpdated
from gradtide.parallel import DataParallel, Device, DevicePool, Shard, shard, split_batch, train_part
from gradtide.parallel.step import BatchResult, LossFn, spread_parameters
from gradtide.store import Store
from gradtide.sync import Job, Servers
from gradtide.train.evaluate import Evaluation, evaluate_replicas
from gradtide.train.keeper import Keeper
from gradtide.train.loop import Run
from gradtide.train.position import Position
from gradtide.train.source import Batch, Source, read_ahead

__all__ = ["RunTogether"]


class RunTogether(Run):
    """The first replica is the one that the job knows; the others follow it."""

    model: DataParallel

    def __init__(
        self,
        joined: tuple[Job, str | Servers, Emit],
        model: nn.Module,
        devices: Sequence[Device],
        pool: DevicePool,
        loss_fn: LossFn,
        strategy: str,
        sync_batch_norm: bool,
        seed: int,
    ) -> None:
        if sync_batch_norm:
            raise ConfigError(
                "sync_batch_norm is over the devices of one process, not over workers; leave it out, or use one worker"
            )
        self._job, self._sync, self._emit = joined
        self._seed, own_seed = seed, seed * self._job.size + self._job.rank  # workers draw different random numbers
        self._lost = False  # whether the servers have lost something that was not seen to yet
        self._before = 0  # batches before this epoch
        super().__init__(model, devices, pool, loss_fn, strategy, False, own_seed)

    def start(self, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        first = self.replicas[0].module
        self.optimizers = [make(first)]
        emit = self._emit if len(self.replicas) == 1 else _until_spread(self._emit)
        self.model = DataParallel(first, self.optimizers[0], self._sync, job=self._job, emit=emit)
        spread_parameters(self.replicas, self.pool)

    def close(self) -> None:
        self.model.close()

    @property
    def has_model(self) -> bool:
        return not self.model.servers_step

    @property
    def store(self) -> Store | None:
        return self.model.store

    def _begin(self, at: Position) -> None:
        if isinstance(self._sync, Servers):  # whose rounds before the checkpoint the position has counted already
            self._job.behind = max(0, self._job.behind - at.step)

    def _go_on_after_loss(self, at: Position, keeper: Keeper, error: RolledBack) -> Position:
        """The servers began again with a checkpoint: with all shards, so this worker does too; or with some, so it only
        takes what is there now."""
        assert self.model.store is not None
        rewound = self.model.store.rewind()
        self._lost = True
        if rewound is not None:
            return keeper.go_back(self, rewound.folder)
        self.resumed_random = torch.get_rng_state()
        return at

    def _catch_up(self) -> None:
        if self._lost:
            self.model.begin_again()
            spread_parameters(self.replicas, self.pool)
            self._lost = False

    def _shards(self, source: Source, at: Position) -> Iterator[list[Shard]]:
        """Whole batches are read ahead, and cut here: when a worker dies, `shard` cuts for those who are left."""
        devices = [replica.device for replica in self.replicas]
        batches = read_ahead(self._read(lambda epoch: _alike(source.read(epoch), self._seed * 1_000_003 + epoch), at))
        self._before, begun = self._job.batches, at.in_epoch
        for batch in shard(batches, job=self._job):
            # Batches that were done without this worker count, and one whose step was lost counts once.
            missed = begun + self._job.batches - self._before - 1 - at.in_epoch
            at.in_epoch, at.step = at.in_epoch + missed, at.step + missed
            yield split_batch(batch, devices)
        if at.in_epoch == begun:
            at.step += self._job.batches - self._before

    def _missed(self) -> bool:
        """A worker that is started again comes to epochs that the others have done without it."""
        return self._job.batches > self._before

    def _step(self, shards: list[Shard], emit: Emit) -> BatchResult:
        result = train_part(
            self.replicas, self.model, shards, self.loss_fn, self.pool, self.strategy, self.randomness, emit
        )
        if self._job.share is not None and self._job.share.samples == 0:  # it computed with one that counts nothing
            return BatchResult(result.loss, None if result.correct is None else 0, 0)
        return result

    def _gather(self, seen: Evaluation) -> Evaluation:
        """Over servers nobody waits for others just to know: there each worker tells what it has seen itself."""
        if isinstance(self._sync, Servers):
            return seen
        return self.model.together(lambda: self._sum(seen), lambda: seen)

    def _sum(self, seen: Evaluation) -> Evaluation:
        if self._job.group is None:  # the last of its job
            return seen
        counts = seen.samples > 0
        loss, correct = (value * seen.samples if counts else 0.0 for value in (seen.loss, seen.accuracy or 0.0))
        sums = torch.tensor([loss, round(correct), seen.samples, seen.accuracy is None], dtype=torch.float64)
        self._job.group.all_reduce(sums)
        summed, right, samples, without = sums.tolist()
        return Evaluation.of(summed, None if without else int(right), int(samples))

    def _evaluate(self, tests: Source) -> Evaluation | None:
        """Each worker its part; over servers worker 0 alone, and nobody waits for it who need not."""
        if isinstance(self._sync, Servers):
            return super()._evaluate(tests) if self._job.rank == 0 else None
        part = Source(lambda epoch: _part(tests.read(epoch), self._job), tests.batch_size, tests.batches)
        own = evaluate_replicas(self.replicas, part, self.loss_fn, self.pool)
        return self.model.together(lambda: self._sum(own), lambda: super(RunTogether, self)._evaluate(tests))


def _until_spread(emit: Emit) -> Emit:
    """With several devices the parameters are updated once they are on all of them, which the step says itself."""

    def passed_on(event: Event) -> None:
        if not isinstance(event, ParametersUpdated):
            emit(event)

    return passed_on


def _alike(batches: Iterable[Batch], seed: int) -> Iterator[Batch]:
    """The same order for all workers, even from a DataLoader that shuffles with torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        iterator = iter(batches)
        first = list(islice(iterator, 1))
    return chain(first, iterator)


def _part(batches: Iterable[Batch], job: Job) -> Iterator[Batch]:
    for inputs, targets in batches:
        begin, end = (len(inputs) * rank // job.size for rank in (job.rank, job.rank + 1))
        if begin < end:
            yield inputs[begin:end], targets[begin:end]
