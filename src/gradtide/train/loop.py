"""fit: a whole training run on several devices, alone or with other workers."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradtide.environment import read_environment
from gradtide.errors import ConfigError, DataError, RolledBack
from gradtide.events import BatchDone, BatchStarted, CompressionDecided, Emit, EpochDone, ignore
from gradtide.parallel import (
    Device,
    DeviceBatch,
    DevicePool,
    Replica,
    find_devices,
    has_batch_norm,
    replicate,
    share_batch_norm,
    split_batch,
    train_batch,
)
from gradtide.parallel.devices.losses import Loss, LossFn, LossTerms
from gradtide.parallel.devices.randomness import DeviceRandom, seed_devices
from gradtide.parallel.devices.shares import DeviceShares
from gradtide.parallel.devices.step import BatchResult, check_strategy
from gradtide.train.evaluation import Evaluation, evaluate_replicas
from gradtide.train.keeper import Checkpoints, Keeper
from gradtide.train.optimizers import OptimizerFactory, Optimizers
from gradtide.train.position import History, Position
from gradtide.train.rates import Rates
from gradtide.train.source import Batch, BatchSource, StepBatch, StepSource, accumulated, as_source, read_ahead

if TYPE_CHECKING:
    from gradtide.compress import Compress
    from gradtide.store import Store
    from gradtide.sync import Job, Local, Servers
    from gradtide.timeouts import Timeouts

__all__ = ["History", "Run", "check_batch", "check_compression", "check_options", "check_window", "fit"]


def fit(  # flat keywords on purpose: this is the call that a Keras user expects
    model: nn.Module,
    train_data: Any,
    *,
    test_data: Any = None,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 256,
    epochs: int = 1,
    lr: float | None = None,
    loss: str | LossFn = "cross_entropy",
    loss_terms: LossTerms = None,
    optimizer: str | OptimizerFactory | torch.optim.Optimizer = "SGD",
    strategy: str = "sharded",
    sync: "str | Servers | Local" = "auto",
    compress: "str | Compress | None" = None,
    accumulate: int = 1,
    scale_batch: bool = False,
    lr_scaling: str = "none",
    warmup_epochs: float = 0.0,
    sync_batch_norm: bool = False,
    balance: bool = False,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    timeouts: "Timeouts | None" = None,
    emit: Emit = ignore,
) -> History:
    """Trains the model in place on several devices and says how it went.

    `train_data` and `test_data` are tensors (inputs, targets), a Dataset or a DataLoader (which keeps its own batch
    size). `batch_size` is that of all devices together; with `scale_batch`, that of each, and `lr_scaling` and
    `warmup_epochs` say what becomes of the learning rate. With `accumulate=4` a step takes four batches as one, of
    which a device computes a fourth at a time (the last step of an epoch takes what is left). `loss` is the name of
    one of torch's ("mse"), or a function or module from (outputs, targets) to one number. That is a mean over the
    samples, unless it is one of torch's, whose options are known, or `loss_terms` says what it is: "sum", or over how
    many terms of the targets it is a mean.
    `optimizer` is the name of a torch.optim class (`lr` is its rate; without it, the class's own default), a function
    from parameters to an optimizer, or an optimizer of the model's parameters, which has the state in the end.
    With `balance`, devices and workers get parts of a batch by their measured speed, not equal ones.
    `checkpoints` says where the run keeps some, how often, and whether it goes on with the newest. `timeouts` says how
    long to wait for other workers. `emit` is called with every event.

    In a job (gradtide run, torchrun) all workers train one model, each with its part of every batch, and `sync` says
    how, and `compress` how gradients are made smaller, as for `DataParallel`; "all devices" then are those of all
    workers. With `Local` they also meet at the end of every epoch.
    """
    smaller = check_compression(compress, sync, checkpoints)
    found, job = find_devices(devices), _job(sync)
    _check_checkpoints(checkpoints, job)
    if job is not None and timeouts is not None:
        job.wait_as(timeouts)
    if job is None and smaller is not None and smaller.codec == "auto":
        emit(CompressionDecided("compress='auto': none, since one process trains alone"))
    everywhere = len(found) * (job.size if job else 1)
    growth = everywhere if scale_batch else 1
    check_options(epochs, scale_batch, lr_scaling)
    rates = Rates(lr_scaling, growth, warmup_epochs)
    optimizers = Optimizers(optimizer, model, lr)
    loss_of_all = Loss(loss, loss_terms, [device.torch_device for device in found])
    if scale_batch and isinstance(train_data, torch.utils.data.DataLoader):
        raise ConfigError("scale_batch can't change a DataLoader's batch size; give the loader the larger one")
    check_strategy(strategy, len(found))
    source = accumulated(as_source(train_data, batch_size * growth, seed), accumulate)
    tests = None if test_data is None else as_source(test_data, max(1024, batch_size), shuffle=False)
    check_batch(source.batch_size, len(found), job.size if job else 1)
    apart = _check_local(sync, source.batches, checkpoints)
    keeping = checkpoints or Checkpoints("")
    keeping = replace(
        keeping, options={**keeping.options, "accumulate": accumulate, "compress": smaller and str(smaller)}
    )
    keeper = Keeper(keeping, job.rank if job else 0, job.size if job else 1, emit, apart=apart)
    keeper.load_model(model)
    with DevicePool(found) as pool:
        run = _kind_of_run(job, sync, smaller, emit)(model, found, pool, loss_of_all, strategy, sync_batch_norm, seed)
        if balance:
            run.balance()
        run.start(optimizers, keeper)
        try:
            history = run.train(source, tests, epochs, rates, emit, keeper)
            run.finish()
            return history
        finally:  # an interrupted run leaves what it learnt
            keeper.close()
            run.close()
            model.load_state_dict(run.replicas[0].module.state_dict())
            if run.has_model:
                optimizers.give_back(run.optimizers[0], run.replicas[0].module)


def check_options(epochs: int, scale_batch: bool, lr_scaling: str) -> None:
    if lr_scaling != "none" and not scale_batch:
        raise ConfigError("lr_scaling follows the batch, which only scale_batch lets grow; give both or neither")
    if epochs < 1:
        raise ConfigError(f"{epochs} epochs; it must be 1 or more")


def check_batch(batch_size: int | None, devices: int, workers: int = 1) -> None:
    """Every device of every worker gets a sample."""
    if batch_size is None or batch_size >= devices * workers:
        return
    who = f"{devices * workers} devices" if workers == 1 or devices > 1 else f"{workers} workers"
    if workers > 1 and devices > 1:
        who += f" ({devices} on each of {workers} workers)"
    fewer = "devices" if devices > 1 or workers == 1 else "workers"
    there = "1 sample" if batch_size == 1 else f"{batch_size} samples"
    raise ConfigError(f"{who} but only {there} in a batch; use a larger batch size or fewer {fewer}")


def _job(sync: object) -> "Job | None":
    """The job to train in; None for one process that trains alone."""
    if isinstance(sync, str) and read_environment().launch is None:
        return None
    from gradtide.sync import current_job

    job = current_job()
    return None if isinstance(sync, str) and job.size == 1 else job


def _check_checkpoints(checkpoints: Checkpoints | None, job: "Job | None") -> None:
    if job is not None and job.elastic is not None and checkpoints is not None:
        raise ConfigError(
            "fit keeps checkpoints of workers that stay: who dies would be waited for at each of them; leave "
            "--min-workers, --max-workers and --max-restarts out and resume after a failure, or leave checkpoints= out"
        )


def _check_local(sync: object, steps: int | None, checkpoints: Checkpoints | None) -> bool:
    """Whether workers step by themselves. `steps` of an epoch, where that is known."""
    if isinstance(sync, str):
        return False
    from gradtide.sync import Local

    if not isinstance(sync, Local):
        return False
    check_window(sync.every, steps)
    if sync.over is not None and checkpoints is not None and (checkpoints.every or checkpoints.resume):
        raise ConfigError("fit keeps no checkpoints of local steps over servers; leave over= or checkpoints= out")
    return True


def check_window(every: int, steps: int | None) -> None:
    if steps is not None and every > steps:
        raise ConfigError(
            f"Local({every}): an epoch has {steps} steps, and workers meet at its end; meet every {steps} or more "
            "often, or make batches smaller"
        )


def check_compression(
    compress: "str | Compress | None", sync: object, checkpoints: Checkpoints | None
) -> "Compress | None":
    """What `compress` says, unless it makes no sense, or checkpoints would lack something."""
    if compress is None:
        return None
    from gradtide.compress import AUTO, as_compress  # brings in numba
    from gradtide.sync import Servers

    settings = as_compress(compress)
    if settings is None or settings.codec == AUTO or checkpoints is None or not isinstance(sync, Servers):
        return settings
    if settings.make().feedback:
        raise ConfigError(
            f"over servers, what compress={str(settings)!r} leaves out on workers is not in fit's checkpoints; leave "
            "checkpoints out, or use int8"
        )
    return settings


def _kind_of_run(
    job: "Job | None", sync: "str | Servers | Local", compress: "Compress | None", emit: Emit
) -> "Callable[..., Run]":
    if job is None:
        return Run
    from gradtide.sync.choose import Wishes  # brings in numba and the store
    from gradtide.sync.compressed import Compression
    from gradtide.train.together.run import RunTogether

    compression = None if compress is None else Compression(compress)
    return partial(RunTogether, (job, Wishes(sync, compression=compression), emit))


class Run:
    """The state of one run: replicas, their optimizers and generators."""

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
        if sync_batch_norm and len(devices) > 1:
            share_batch_norm(self.replicas, pool)
        # Watches the first batch; stays only if the model drew random numbers, since it costs time at every operation.
        self.randomness: list[DeviceRandom | None] | None = seed_devices(devices, seed)
        self.epoch_random = torch.get_rng_state()  # torch's own generator, at the start of this epoch
        self.resumed_random: torch.Tensor | None = None  # where it was at the checkpoint that this run goes on from

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
        while at.epoch <= epochs:
            try:
                self._catch_up()
                self._train_epoch(source, at, rates, emit, keeper)
                self._end_epoch(at, tests, emit)
            except RolledBack as error:
                at = self._go_on_after_loss(at, keeper, error)
        keeper.finish()
        return at.history

    def _begin(self, at: Position) -> None:
        """Before the first epoch, or what is left of it."""

    def _train_epoch(self, source: StepSource, at: Position, rates: Rates, emit: Emit, keeper: Keeper) -> None:
        """What is left of an epoch."""
        for shards in self._shards(source, at):
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
        correct = at.correct if at.classes else None
        seen = self._gather(Evaluation.of(at.summed, at.terms or 0.0, correct, at.samples))
        at.history.loss.append(seen.loss)
        at.history.accuracy.append(seen.accuracy)
        self._test(tests, at.epoch, at.history, emit)
        at.next_epoch()

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

    def _catch_up(self) -> None:
        """After a loss: takes what the servers have now."""

    def _go_on_after_loss(self, at: Position, keeper: Keeper, error: RolledBack) -> Position:
        """Servers lost something: where to go on."""
        raise error

    def finish(self) -> None:
        """After the last step."""

    def close(self) -> None:
        """Afterwards the first replica has what was learnt."""

    def _step(self, shards: list[DeviceBatch], emit: Emit) -> BatchResult:
        told = emit if self.shares is None else self.shares.watch(shards, emit)
        return train_batch(
            self.replicas, self.optimizers, shards, self.loss, self.pool, self.strategy, self.randomness, told
        )

    def _shards(self, source: StepSource, at: Position) -> Iterator[list[DeviceBatch]]:
        steps = self._read(source.read, at)
        return read_ahead(self._split((step.inputs, step.targets), pieces=step.batches) for step in steps)

    def _split(self, batch: Batch, of: int | None = None, pieces: int = 1) -> list[DeviceBatch]:
        sizes = None if self.shares is None else self.shares.sizes(len(batch[0]))
        return split_batch(batch, [replica.device for replica in self.replicas], of, pieces, sizes)

    def _read(self, read: Callable[[int], Iterable[StepBatch]], at: Position) -> Iterator[StepBatch]:
        """The batches that are left of an epoch, in the order in which they came the first time."""
        if self.resumed_random is None:
            self.epoch_random = torch.get_rng_state()
            return iter(read(at.epoch))
        torch.set_rng_state(self.epoch_random)
        batches = islice(read(at.epoch), at.in_epoch, None)
        first = list(islice(batches, 1))
        torch.set_rng_state(self.resumed_random)
        self.resumed_random = None
        return chain(first, batches)

    def _missed(self) -> bool:
        """Whether the epoch had batches, but none for us."""
        return False

    def _gather(self, seen: Evaluation) -> Evaluation:
        """What all that train together have seen."""
        return seen

    def _evaluate(self, tests: BatchSource) -> Evaluation | None:
        return evaluate_replicas(self.replicas, tests, self.loss, self.pool, self._split)

    def _test(self, tests: BatchSource | None, epoch: int, history: History, emit: Emit) -> None:
        seen = self._evaluate(tests) if tests else None
        if seen is None:
            emit(EpochDone(epoch, None, None))
            return
        history.test_loss.append(seen.loss)
        history.test_accuracy.append(seen.accuracy)
        emit(EpochDone(epoch, seen.loss, seen.accuracy))
