"""fit's run of a split model: the same loop, whose steps go through the stages of one model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradtide.collective import Group
from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.even_share import even_share
from gradtide.events import BatchDone, Emit, Event, ParametersUpdated, SplitDecided, TaskDone, ignore
from gradtide.parallel import Device, DeviceBatch, DevicePool, FirstEdited, ModelParallel
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.nested import length
from gradtide.parallel.devices.replicas import FlatGradients, Replica
from gradtide.parallel.devices.step import BatchResult, count_correct
from gradtide.parallel.split.cut.exactness import BatchNormChoice
from gradtide.parallel.split.run.setting_up import broadcast_model
from gradtide.sync import Job
from gradtide.train.evaluation import Evaluation
from gradtide.train.keeper import Keeper
from gradtide.train.optimizers import Optimizers
from gradtide.train.position import History, Position
from gradtide.train.run import Run
from gradtide.train.source import BatchSource, StepBatch, StepSource, as_first_worker
from gradtide.train.steering.outputs import join_rows
from gradtide.train.steering.rates import Rates

__all__ = ["RunSplit"]

_WEIGHTED = "sample weights are for copies of a whole model, and split= for parts of one; leave one out"


class RunSplit(Run):
    """The one replica is the model itself: it has its parameters while nobody steps (`whole`), and at the end."""

    model: ModelParallel

    def __init__(
        self,
        joined: tuple[Job | None, Any],
        model: nn.Module,
        devices: Sequence[Device],
        pool: DevicePool,
        loss: Loss,
        strategy: str,
        sync_batch_norm: bool,
        seed: int,
    ) -> None:
        self._job, self._wanted = joined
        self.is_main = self._job is None or self._job.rank == 0
        if self._job is not None and len(devices) > 1:
            raise ConfigError("with split= every worker of a job is a device; leave devices= out")
        if loss.weighted:
            raise ConfigError(_WEIGHTED)
        self.pool, self.loss, self.strategy, self._seed = pool, loss, strategy, seed
        self.replicas = [Replica(devices[0], model.train(), FlatGradients([]))]
        self.optimizers, self.shares, self.randomness, self.least_part = [], None, None, 1
        self._failed, self._replaced, self._told = False, False, False
        self._told_to: Emit = ignore
        self._batch_norm: BatchNormChoice = "shared" if sync_batch_norm else ""

    def start(self, made_by: Optimizers, keeper: Keeper) -> None:
        self.made_by, module = made_by, self.replicas[0].module
        self.optimizers = [keeper.load_optimizer(made_by.make(module))]
        options: dict[str, Any] = {"seed": self._seed, "batch_norm": self._batch_norm}
        options["clip_norm"] = self.steering.clip_norm
        if read_environment().trace:
            options["emit"] = self._tell_task
        if self._job is None:
            self.model = ModelParallel.on_pool(self.pool, module, self.optimizers[0], self._wanted, **options)
        else:
            self.model = ModelParallel(module, self.optimizers[0], self._wanted, job=self._job, **options)

    def train(
        self, source: StepSource, tests: BatchSource | None, epochs: int, rates: Rates, emit: Emit, keeper: Keeper
    ) -> History:
        if tests is not None and tests.weighted:
            raise ConfigError(_WEIGHTED)
        told = self._told_to = emit if self._job is None else _shared_out(self._job, emit)
        return super().train(source, tests, epochs, rates, told, keeper)

    def _tell_task(self, event: Event) -> None:
        """Of what the model tells, this run says the rest itself."""
        if isinstance(event, TaskDone):
            self._told_to(event)

    def _begin(self, at: Position) -> None:
        self.model.steps = at.step

    def _shards(self, source: StepSource, at: Position) -> Iterator[list[DeviceBatch]]:
        def read(epoch: int) -> Iterator[StepBatch]:
            return as_first_worker(source.read(epoch), self._group)

        return self._ahead([DeviceBatch(step.inputs, step.targets, 1.0)] for step in self._read(read, at))

    @property
    def _group(self) -> Group | None:
        return None if self._job is None else self._job.group

    def _any_says(self, this_one: bool) -> bool:
        group = self._group
        return this_one if group is None else bool(group.all_reduce(torch.tensor([int(this_one)])) > 0)

    def _let_edit(self, tell: Callable[[], None]) -> None:
        """Values are followed; what else the model is was traced."""
        edited, module = FirstEdited(self.replicas), self.replicas[0].module
        with self.whole():
            tell()
            if edited.set_attribute:
                raise ConfigError(
                    f"a callback changed {edited.set_attribute}, but a split model computes as it did when it was "
                    "split; change values of parameters alone, or leave split= out"
                )
            try:
                edited.follow(alone=False)
            except ConfigError:
                self._failed = self._replaced = True
                raise
            broadcast_model(module, self._group)
            self.model.load_state_dict(module.state_dict())

    def _step(self, shards: list[DeviceBatch], emit: Emit) -> BatchResult:
        try:
            self.model.step(shards[0].inputs, shards[0].targets, self.loss)
        except BaseException:
            self._failed = True
            raise
        if not self._told:
            emit(SplitDecided(self.model.explain()))
            self._told = True
        emit(ParametersUpdated())
        assert self.model.last is not None
        return self.model.last

    def _evaluate(self, tests: BatchSource) -> Evaluation | None:
        """Every worker has what the model returns for all samples."""
        total, terms, samples, correct = 0.0, 0.0, 0, list[int | None]()
        metrics = self.steering.metrics
        metrics.reset()
        self.model.eval()
        for inputs, targets in as_first_worker(tests.read(0), self._group):
            outputs = self.model(inputs)
            weighed = self.loss.begin([DeviceBatch(inputs, targets, 1.0)], split=False)
            value = self.loss(outputs, targets).item() if weighed.terms else 0.0
            total, terms, samples = total + value * weighed.terms, terms + weighed.terms, samples + length(inputs)
            correct.append(count_correct(outputs, targets))
            metrics.update(join_rows([outputs], [length(inputs)]), targets, length(inputs)) if metrics else None
        self.model.train()
        right = [one for one in correct if one is not None]
        of_classes = sum(right) if len(right) == len(correct) else None
        return Evaluation.of(total, terms, of_classes, samples, metrics.compute())

    @contextmanager
    def whole(self) -> Iterator[None]:
        self.model.give_back()
        try:
            yield
        finally:
            self.model.take_again()

    def close(self) -> None:
        """A job that lost a worker has lost its part of the model: that is in the last checkpoint."""
        if not (self._replaced or (self._failed and self._job is not None)):
            self.model.give_back()
        self.model.close()


def _shared_out(job: Job, emit: Emit) -> Emit:
    """Every worker has seen the whole batch, and tells of its share: whoever adds up has it once."""

    def tell(event: Event) -> None:
        if isinstance(event, BatchDone):
            mine = [even_share(count, job.rank, job.size) for count in (event.samples, event.correct or 0)]
            samples, correct = (last - first for first, last in mine)
            event = replace(event, samples=samples, correct=None if event.correct is None else correct)
        emit(event)

    return tell
