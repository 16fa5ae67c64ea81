"""fit's run as one worker of a job: the same loop, with our part of every batch and one model for all workers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from gradtide.compress import AUTO
from gradtide.errors import ConfigError, RolledBack
from gradtide.even_share import even_share
from gradtide.events import CompressionDecided, Emit, Event, ParametersUpdated
from gradtide.parallel import Device, DeviceBatch, DevicePool, shard, train_part
from gradtide.parallel.agreed_shares import NOBODY_WAITS, AgreedShares
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.step import BatchResult, spread_parameters
from gradtide.store import Store
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync import Job, Local, Servers
from gradtide.sync.choose import Wishes
from gradtide.sync.compressed.predict import ONE_WORKER
from gradtide.sync.servers.smaller import AUTO_OVER_SERVERS
from gradtide.sync.synchroniser import Synchroniser
from gradtide.sync.trained import find_trained, has_stepped
from gradtide.train.evaluation import Evaluation, evaluate_replicas
from gradtide.train.keeper import Keeper
from gradtide.train.loop import Run
from gradtide.train.optimizers import Optimizers
from gradtide.train.position import Position
from gradtide.train.source import Batch, BatchSource, StepBatch, StepSource, read_ahead

__all__ = ["RunTogether"]


class RunTogether(Run):
    """The first replica is the one that the job knows; the others follow it."""

    synchroniser: Synchroniser

    def __init__(
        self,
        joined: tuple[Job, Wishes, Emit],
        model: nn.Module,
        devices: Sequence[Device],
        pool: DevicePool,
        loss: Loss,
        strategy: str,
        sync_batch_norm: bool,
        seed: int,
    ) -> None:
        if sync_batch_norm:
            raise ConfigError(
                "sync_batch_norm is over the devices of one process, not over workers; leave it out, or use one worker"
            )
        self._job, self._wishes, self._emit = joined
        self._seed, own_seed = seed, seed * self._job.size + self._job.rank  # workers draw different random numbers
        self._lost = False  # whether the servers have lost something that was not seen to yet
        self._before = 0  # batches before this epoch
        self._agreed: AgreedShares | None = None  # the workers' shares, where they follow speed
        super().__init__(model, devices, pool, loss, strategy, False, own_seed)

    def balance(self) -> None:
        sync = self._wishes.sync
        if isinstance(sync, Servers) and sync.mode == "async":
            raise ConfigError(NOBODY_WAITS)
        super().balance()
        self._agreed = AgreedShares(self._job)
        self._job.least_part = len(self.replicas) * self.least_part

    def start(self, made_by: Optimizers, keeper: Keeper) -> None:
        first, self.made_by = self.replicas[0].module, made_by
        self.optimizers = [keeper.load_optimizer(made_by.make(first))]
        wishes, sync = self._wishes, self._wishes.sync
        if isinstance(sync, Servers) and is_elementwise(self.optimizers[0]) and has_stepped(self.optimizers[0]):
            raise ConfigError(
                f"{type(self.optimizers[0]).__name__} has state of earlier steps, but servers that step begin without; "
                "give fit a new optimizer, or train without servers"
            )
        emit = self._emit if len(self.replicas) == 1 else _until_spread(self._emit)
        trained = find_trained(first, self.optimizers[0])
        if isinstance(sync, Servers) and keeper.resumed is not None:  # they began with a checkpoint, and so do we
            wishes = replace(wishes, sync=replace(sync, resume=True))
        self.synchroniser = Synchroniser(trained, self._job, wishes, emit)
        if isinstance(sync, Local):  # the optimizer's state was made worker 0's, and is each worker's own
            keeper.load_optimizer(self.optimizers[0])
        self.synchroniser.load_state(keeper.sync_state())
        if wishes.compression is not None and wishes.compression.settings.codec == AUTO:
            alone = ONE_WORKER if self.synchroniser.way.is_collective else AUTO_OVER_SERVERS
            self._emit(CompressionDecided(wishes.compression.decided or alone))
        spread_parameters(self.replicas, self.pool)

    def finish(self) -> None:
        self.synchroniser.finish()

    def close(self) -> None:
        self.synchroniser.close()

    @property
    def has_model(self) -> bool:
        return not self.synchroniser.way.servers_step

    @property
    def store(self) -> Store | None:
        return self.synchroniser.way.store

    @property
    def is_alike(self) -> bool:
        return not self.synchroniser.way.apart

    def sync_state(self) -> dict[str, Any]:
        return self.synchroniser.state()

    def _begin(self, at: Position) -> None:
        if not self.synchroniser.way.is_collective:  # the position has counted the rounds before the checkpoint
            self._job.behind = max(0, self._job.behind - at.step)

    def _go_on_after_loss(self, at: Position, keeper: Keeper, error: RolledBack) -> Position:
        """The servers began again with a checkpoint: with all shards, so this worker does too; or with some, so it only
        takes what is there now."""
        assert self.store is not None
        rewound = self.store.rewind()
        self._lost = True
        self.made_by.forget()
        if rewound is not None:
            return keeper.go_back(self, rewound.folder)
        self.resumed_random = torch.get_rng_state()
        return at

    def _catch_up(self) -> None:
        if self._lost:
            self.synchroniser.begin_again()
            spread_parameters(self.replicas, self.pool)
            self._lost = False

    def _shards(self, source: StepSource, at: Position) -> Iterator[list[DeviceBatch]]:
        """Whole batches are read ahead, and cut here: when a worker dies, `shard` cuts for those who are left."""
        whole = self._read(lambda epoch: _alike(source.read(epoch), self._seed * 1_000_003 + epoch), at)
        batches = read_ahead(self._checked(batch) for batch in whole)
        self._before, begun = self._job.batches, at.in_epoch
        # Over servers nobody waits for others just to compare batches.
        check, balance = self.synchroniser.way.is_collective, self._agreed or False
        for step in shard(batches, whole=["batches"], check=check, balance=balance, job=self._job):
            # Batches that were done without this worker count, and one whose step was lost counts once.
            missed = begun + self._job.batches - self._before - 1 - at.in_epoch
            at.in_epoch, at.step = at.in_epoch + missed, at.step + missed
            assert self._job.share is not None
            shards = self._split((step.inputs, step.targets), self._job.share.of, step.batches)
            yield shards if self._job.share.samples else [replace(part, weight=0.0) for part in shards]
        if at.in_epoch == begun:
            at.step += self._job.batches - self._before

    def _checked(self, batch: StepBatch) -> StepBatch:
        """A part may have nothing to learn from, but not the whole batch."""
        if self.loss.terms.count is not None:
            self.loss.refuse_nothing(self.loss.count(batch.targets))
        return batch

    def _missed(self) -> bool:
        """A worker that is started again comes to epochs that the others have done without it."""
        return self._job.batches > self._before

    def _step(self, shards: list[DeviceBatch], emit: Emit) -> BatchResult:
        told = emit if self.shares is None else self.shares.watch(shards, emit)
        result = train_part(
            self.replicas, self.synchroniser, shards, self.loss, self.pool, self.strategy, self.randomness, told
        )
        # It computed with a sample that counts nothing, or its step was lost with a worker and comes again.
        if self._job.undone or (self._job.share is not None and self._job.share.samples == 0):
            return BatchResult(result.loss, None if result.correct is None else 0, 0, 0.0)
        return result

    def _end_epoch(self, at: Position, tests: BatchSource | None, emit: Emit) -> None:
        """Workers that step by themselves meet, whether there is test data or not: figures are of one model."""
        if isinstance(self._wishes.sync, Local):
            self.synchroniser.finish()
            spread_parameters(self.replicas, self.pool)
        super()._end_epoch(at, tests, emit)

    def _gather(self, seen: Evaluation) -> Evaluation:
        """Over servers nobody waits for others just to know: there each worker tells what it has seen itself."""
        if not self.synchroniser.way.is_collective:
            return seen
        return self.synchroniser.together(lambda: self._sum(seen), lambda: seen)

    def _sum(self, seen: Evaluation) -> Evaluation:
        if self._job.size == 1:  # the last of its job
            return seen
        loss = seen.loss * seen.terms if seen.terms else 0.0
        correct = round((seen.accuracy or 0.0) * seen.samples) if seen.samples else 0
        sums = torch.tensor([loss, seen.terms, correct, seen.samples, seen.accuracy is None], dtype=torch.float64)
        summed, terms, right, samples, without = self.synchroniser.way.add_up(sums).tolist()
        return Evaluation.of(summed, terms, None if without else int(right), int(samples))

    def _evaluate(self, tests: BatchSource) -> Evaluation | None:
        """Each worker its part; over servers the first of the last step alone, and nobody waits for it."""
        if not self.synchroniser.way.is_collective:
            return super()._evaluate(tests) if self.synchroniser.way.led else None
        own = evaluate_replicas(self.replicas, tests, self.loss, self.pool, self._split_own)
        return self.synchroniser.together(lambda: self._sum(own), lambda: super(RunTogether, self)._evaluate(tests))

    def _split_own(self, batch: Batch) -> list[DeviceBatch]:
        """Our part of a batch of the test data; nothing if it is that small."""
        inputs, targets = batch
        begin, end = even_share(len(inputs), self._job.rank, self._job.size)
        return self._split((inputs[begin:end], targets[begin:end]), len(inputs)) if begin < end else []


def _until_spread(emit: Emit) -> Emit:
    """With several devices the parameters are updated once they are on all of them, which the step says itself."""

    def passed_on(event: Event) -> None:
        if not isinstance(event, ParametersUpdated):
            emit(event)

    return passed_on


def _alike(batches: Iterable[StepBatch], seed: int) -> Iterator[StepBatch]:
    """The same order for all workers, even from a DataLoader that shuffles with torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        iterator = iter(batches)
        first = list(islice(iterator, 1))
    return chain(first, iterator)
