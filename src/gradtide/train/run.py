"""One run of fit: replicas, their optimizers and generators, through its steps and epochs."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from gradtide.errors import DataError, RolledBack
from gradtide.events import BatchDone, BatchStarted, Emit, EpochDone
from gradtide.parallel import (
    Device,
    DeviceBatch,
    DevicePool,
    FirstEdited,
    Replica,
    has_batch_norm,
    replicate,
    share_batch_norm,
    split_batch,
    train_batch,
)
from gradtide.parallel.devices.batch_norm import NormExchange
from gradtide.parallel.devices.batches import split_pieces
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.nested import length
from gradtide.parallel.devices.pieces import even_pieces
from gradtide.parallel.devices.randomness import DeviceRandom, seed_devices
from gradtide.parallel.devices.shares import DeviceShares
from gradtide.parallel.devices.step import BatchResult
from gradtide.train.evaluation import Evaluation, evaluate_replicas
from gradtide.train.keeper import Keeper
from gradtide.train.optimizers import Optimizers
from gradtide.train.position import History, Position
from gradtide.train.run_state import DataGenerators
from gradtide.train.source import Batch, BatchSource, ReadAhead, StepBatch, StepSource
from gradtide.train.steering.callbacks import Callbacks, EpochEnd
from gradtide.train.steering.metrics import Metrics
from gradtide.train.steering.progress import RunProgress
from gradtide.train.steering.rates import Rates
from gradtide.train.steering.schedules import RateSchedule

if TYPE_CHECKING:
    from gradtide.store import Store

__all__ = ["Run", "Steering"]

T = TypeVar("T")  # a step's batch, or a worker's part of it


@dataclass(frozen=True, slots=True)
class Steering:
    """What the user added to a run."""

    metrics: Metrics = field(default_factory=lambda: Metrics(None))
    callbacks: Callbacks = field(default_factory=lambda: Callbacks(None))
    schedule: RateSchedule | None = None
    clip_norm: float | None = None
    progress: RunProgress | None = None


class Run:
    """The state of one run: replicas, their optimizers and generators."""

    steering = Steering()
    history = History()
    generators = DataGenerators()  # of the process, and of the data
    epoch_random: Mapping[str, torch.Tensor] = {}  # where they were at the start of this epoch
    resumed_random: Mapping[str, torch.Tensor] | None = None  # and at the checkpoint that this run goes on from
    test_loss: Loss  # of the validation data, which may have sample weights where the training data has none
    reading: ReadAhead[Any] | None = None  # the batches of this epoch
    is_main, is_lone = True, False  # whether this process writes for all; whether it goes on without the others

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[Device],
        pool: DevicePool,
        loss: Loss,
        strategy: str,
        sync_batch_norm: bool,
        seed: int,
    ) -> None:
        self.pool, self.loss, self.strategy = pool, loss, strategy
        self.replicas: list[Replica] = replicate(model, devices)
        self.optimizers: list[torch.optim.Optimizer] = []
        self.made_by: Optimizers
        self.shares: DeviceShares | None = None  # of the devices, where they follow speed
        self.least_part = 1 if sync_batch_norm or not has_batch_norm(model) else 2  # samples of a device, then
        for replica in self.replicas:
            replica.module.train()
        self.meets_in_pieces = sync_batch_norm and has_batch_norm(model)
        if sync_batch_norm:
            self._share_batch_norm()
        # Watches the first batch; stays only if the model drew random numbers, since it costs time at every operation.
        self.randomness: list[DeviceRandom | None] | None = seed_devices(devices, seed)

    def _share_batch_norm(self) -> None:
        meeting = self._meeting()
        if len(self.replicas) > 1 or meeting is not self.pool.meeting:
            share_batch_norm(self.replicas, self.pool, meeting)

    def _meeting(self) -> NormExchange:
        """Where batch normalisation exchanges what it needs to know: the devices of this process."""
        return self.pool.meeting

    def balance(self) -> None:
        """Parts follow speed from now on."""
        if len(self.replicas) > 1:
            self.shares = DeviceShares(self.pool, self.least_part)

    def start(self, made_by: Optimizers, keeper: Keeper) -> None:
        self.made_by = made_by
        self.optimizers = [keeper.load_optimizer(made_by.make(replica.module)) for replica in self.replicas]

    def train(
        self, source: StepSource, tests: BatchSource | None, epochs: int, rates: Rates, emit: Emit, keeper: Keeper
    ) -> History:
        at = keeper.begin(self)
        self._begin(at)
        at.batches = at.batches or source.batches
        self.history = at.history
        if keeper.resumed is not None:
            at.history.resumed = f"after step {at.step}, from {keeper.resumed.address}"
        while at.epoch <= epochs and not at.history.stopped:
            try:
                self._catch_up()
                self._train_epoch(source, at, rates, emit, keeper)
                self._end_epoch(at, tests, emit)
                keeper.after_epoch(at)
            except RolledBack as error:
                at = self._go_on_after_loss(at, keeper, error)
                self.history = at.history
        keeper.finish()
        return at.history

    def _begin(self, at: Position) -> None:
        """Before the first epoch, or what is left of it."""

    def _train_epoch(self, source: StepSource, at: Position, rates: Rates, emit: Emit, keeper: Keeper) -> None:
        """What is left of an epoch."""
        for shards in self._shards(source, at):
            if self.steering.schedule is not None:
                self.steering.schedule.follow(at, self.optimizers, self.made_by, agreed=self.agrees)
            done = at.epoch - 1 + (at.in_epoch / at.batches if at.batches else 0.0)
            at.lr = self.made_by.set_rates(self.optimizers, rates.at(done))
            emit(BatchStarted())
            result = self._step(shards, emit)
            if at.step == 0 and self.randomness and not any(r and r.draws for r in self.randomness):
                self.randomness = None
            at.step, at.in_epoch, at.samples = at.step + 1, at.in_epoch + 1, at.samples + result.samples
            at.summed, at.terms = at.summed + result.loss * result.terms, (at.terms or 0.0) + result.terms
            at.classes, at.correct = at.classes and result.correct is not None, at.correct + (result.correct or 0)
            at.draws = self.randomness is not None
            emit(BatchDone(at.epoch, at.step, result.samples, result.loss, result.correct, at.lr))
            if not math.isfinite(result.loss):
                raise DataError(
                    f"the loss is {result.loss} at step {at.step}; lower the learning rate or look at the data"
                )
            keeper.after_step(self, at)

    def _end_epoch(self, at: Position, tests: BatchSource | None, emit: Emit) -> None:
        if at.in_epoch == 0:
            if not self._missed():
                raise DataError(
                    f"epoch {at.epoch} had no batch; an iterable source must give its samples anew each epoch"
                )
            at.next_epoch()
            return
        before = {name: len(values) for name, values in at.history.columns().items()}
        correct = at.correct if at.classes else None
        seen = self._gather(Evaluation.of(at.summed, at.terms or 0.0, correct, at.samples))
        at.history.loss.append(seen.loss)
        at.history.accuracy.append(seen.accuracy)
        at.history.lr.append(at.lr)
        self._test(tests, at.epoch, at.history, emit)
        self._tell_callbacks(at, before)
        at.next_epoch()

    def _tell_callbacks(self, at: Position, before: Mapping[str, int]) -> None:
        """The figures that this epoch added; one worker that wants to stop stops all."""
        new = [(name, seen[-1]) for name, seen in at.history.columns().items() if len(seen) > before.get(name, 0)]
        values = {name: value for name, value in new if value is not None}
        if self.steering.progress is not None:
            self.steering.progress.tell_epoch(at.epoch, at.in_epoch, values)
        if not self._any_says(bool(self.steering.callbacks)):
            return
        module = self.replicas[0].module
        event = EpochEnd(at.epoch, at.step, values, at.history, module, self.is_main, self.is_lone)
        self._let_edit(lambda: self.steering.callbacks.tell(event))
        if not self.is_lone and self._any_says(bool(event.asked)):
            at.history.stopped = event.asked[0] if event.asked else "a callback of another worker asked for it"

    def _let_edit(self, tell: Callable[[], None]) -> None:
        """`tell` may change the first replica's model. Afterwards all that train together have what it made of it."""
        edited = FirstEdited(self.replicas)
        with self.whole():
            tell()
        self.replicas = edited.follow()

    def _any_says(self, this_one: bool) -> bool:
        """Whether any of those that train together says so."""
        return this_one

    @property
    def agrees(self) -> bool:
        """Whether all that train together know the same history at every moment."""
        return True

    @property
    def has_model(self) -> bool:
        """Whether this process holds the parameters and the optimizer's state, or servers do."""
        return True

    @property
    def store(self) -> "Store | None":
        """Where the parameters are, if not here."""
        return None

    @property
    def is_alike(self) -> bool:
        """Whether all that train together have the same parameters now."""
        return True

    def sync_state(self) -> dict[str, Any]:
        """What is in no model and no optimizer of a worker's own, where all are alike."""
        return {}

    def load_sync_state(self, state: dict[str, Any]) -> None:
        """Goes on with it."""

    def _catch_up(self) -> None:
        """After a loss: takes what the servers have now."""

    def _go_on_after_loss(self, at: Position, keeper: Keeper, error: RolledBack) -> Position:
        """Servers lost something: where to go on."""
        raise error

    def whole(self) -> AbstractContextManager[None]:
        """In it the first replica and optimizer have what is spread over devices: for a checkpoint, by all workers."""
        return nullcontext()

    def finish(self) -> None:
        """After the last step."""

    def close(self) -> None:
        """Afterwards the first replica has what was learnt."""

    def _step(self, shards: list[DeviceBatch], emit: Emit) -> BatchResult:
        told = emit if self.shares is None else self.shares.watch(shards, emit)
        return train_batch(
            self.replicas,
            self.optimizers,
            shards,
            self.loss,
            self.pool,
            self.strategy,
            self.randomness,
            told,
            clip_norm=self.steering.clip_norm,
        )

    def _shards(self, source: StepSource, at: Position) -> Iterator[list[DeviceBatch]]:
        steps = self._read(source.read, at)
        return self._ahead(self._cut(step) for step in steps)

    def _ahead(self, items: Iterable[T]) -> Iterator[T]:
        self.reading = ReadAhead(items)
        return iter(self.reading)

    def _cut(self, step: StepBatch) -> list[DeviceBatch]:
        """Every device's part; where they meet in batch normalisation, of the pieces that one device would compute."""
        batch, samples = (step.inputs, step.targets), length(step.inputs)
        if not self.meets_in_pieces or step.batches == 1:
            return self._split(batch, pieces=step.batches)
        pieces = even_pieces(samples, min(step.batches, samples))
        return split_pieces(batch, [replica.device for replica in self.replicas], pieces)

    def _split(self, batch: Batch, of: int | None = None, pieces: int = 1) -> list[DeviceBatch]:
        sizes = None if self.shares is None else self.shares.sizes(len(batch[0]))
        return split_batch(batch, [replica.device for replica in self.replicas], of, pieces, sizes)

    def _read(self, read: Callable[[int], Iterable[T]], at: Position) -> Iterator[T]:
        """The batches that are left of an epoch, in the order in which they came the first time."""
        if self.resumed_random is None:
            self.epoch_random = self.generators.states()
            return iter(read(at.epoch))
        self.generators.load(self.epoch_random)
        batches = islice(read(at.epoch), at.in_epoch, None)
        first = list(islice(batches, 1))
        self.generators.load(self.resumed_random)
        self.resumed_random = None
        return chain(first, batches)

    def _missed(self) -> bool:
        """Whether the epoch had batches, but none for us."""
        return False

    def _gather(self, seen: Evaluation) -> Evaluation:
        """What all that train together have seen."""
        return seen

    def _evaluate(self, tests: BatchSource) -> Evaluation | None:
        return evaluate_replicas(self.replicas, tests, self.test_loss, self.pool, self._split, self.steering.metrics)

    def _test(self, tests: BatchSource | None, epoch: int, history: History, emit: Emit) -> None:
        seen = self._evaluate(tests) if tests else None
        if seen is None:
            emit(EpochDone(epoch, None, None))
            return
        history.test_loss.append(seen.loss)
        history.test_accuracy.append(seen.accuracy)
        for name, value in seen.metrics.items():
            history.metrics.setdefault(name, []).append(value)
        emit(EpochDone(epoch, seen.loss, seen.accuracy, dict(seen.metrics)))
