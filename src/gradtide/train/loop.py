"""fit: a whole training run on several devices, alone or with other workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradtide.calling import check_flags, refuse_foreign_names
from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.events import BatchDone, CompressionDecided, Emit, EpochDone, ignore
from gradtide.observe.event_log import find_log
from gradtide.parallel import DevicePool, find_devices
from gradtide.parallel.devices.losses import LossFn, LossTerms
from gradtide.parallel.devices.step import check_strategy
from gradtide.timeouts import check_timeouts
from gradtide.train.arguments import FIT, FIT_UNNAMED, check_kinds, check_model, check_unwrapped
from gradtide.train.evaluation import make_loss
from gradtide.train.keeper import Checkpoints, Keeper
from gradtide.train.optimizers import OptimizerFactory, Optimizers
from gradtide.train.position import History
from gradtide.train.run import Run, Steering
from gradtide.train.run_state import DataGenerators
from gradtide.train.settings import (
    check_batch,
    check_batch_norm,
    check_checkpoints,
    check_local,
    check_options,
    check_precision,
    check_split,
    check_validation,
)
from gradtide.train.source import accumulated, as_source, with_equal_weights
from gradtide.train.steering.callbacks import Callbacks, FitEnd
from gradtide.train.steering.metrics import Metrics
from gradtide.train.steering.progress import follow_progress
from gradtide.train.steering.rates import Rates
from gradtide.train.steering.schedules import RateSchedule, ScheduleFactory

if TYPE_CHECKING:
    from gradtide.compress import Compress
    from gradtide.sync import Job, Local, Servers
    from gradtide.timeouts import Timeouts

__all__ = ["History", "Run", "fit"]


@refuse_foreign_names(FIT, FIT_UNNAMED)
def fit(  # flat keywords on purpose: this is the call that a Keras user expects
    model: nn.Module,
    train_data: Any,
    *,
    validation: Any = None,
    devices: int | str | Sequence[str] = 1,
    batch_size: int = 256,
    epochs: int = 1,
    lr: float | None = None,
    loss: str | LossFn = "cross_entropy",
    loss_terms: LossTerms = None,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    optimizer: str | OptimizerFactory | torch.optim.Optimizer = "SGD",
    schedule: ScheduleFactory | None = None,
    schedule_per: str = "epoch",
    clip_norm: float | None = None,
    precision: str | None = None,
    callbacks: Sequence[Callable[[Any], object]] | None = None,
    progress: bool | None = None,
    strategy: str = "sharded",
    sync: "str | Servers | Local" = "auto",
    compress: "str | Compress | None" = None,
    accumulate: int = 1,
    scale_batch: bool = False,
    lr_scaling: str = "none",
    warmup_epochs: float = 0.0,
    batch_norm: str = "own",
    balance: bool = False,
    split: Any = None,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    resume: bool | str | Path = False,
    timeouts: "Timeouts | None" = None,
    emit: Emit = ignore,
    test_data: Any = None,
    sync_batch_norm: bool = False,
) -> History:
    """Trains the model in place on several devices and returns how it went: a table when printed, `.plot(path)`.

    - `train_data` and `validation` are (inputs, targets), or (inputs, targets, weights), as tensors, NumPy arrays, or
      dicts, tuples and lists of them; a Dataset; a DataLoader; or a function that gives an epoch's batches. A
      DataLoader and a function keep their own batch size.
    - `devices` is a number, or names ("cpu:0,cpu:1", ["cuda:0", "cuda:1"]); `epochs` is how often to go over the data.
    - `batch_size` counts the samples of all devices together. With `scale_batch` it counts those of each device, and
      `lr_scaling` and `warmup_epochs` say how the learning rate changes.
    - `accumulate=4` takes four batches as one step; a device computes a fourth at a time. (The last step of an epoch
      takes what is left.)
    - `loss` is the name of a loss of torch's ("mse"), or a function or module from (outputs, targets) to one number.
      That number counts as a mean over the samples, with two exceptions: the options of torch's losses are known, and
      `loss_terms` says what another loss is ("sum", or over how many terms of the targets it is a mean).
    - `metrics` are measured on the validation data: functions of (outputs, targets) that are means over samples, or
      objects with update, compute and reset, like those of torchmetrics.
    - `optimizer` is the name of a torch.optim class (`lr` is its rate; without it, the class's own default), a function
      from parameters to an optimizer, or an optimizer of the model's parameters, which has the state in the end.
    - `schedule` is a function from an optimizer to a scheduler of torch's, which is stepped per epoch, or per step.
    - `clip_norm` bounds the norm of the whole gradient.
    - `precision="bf16"` computes forward and the loss under autocast.
    - `callbacks` are functions of events (EarlyStopping, BestModel, CSVLog, TensorBoardLog among them).
    - `progress=False` shows no progress: a bar on a terminal and in a notebook, a line every 10 seconds elsewhere.
    - `split` ("auto", a Layout, what `gradtide.split` gives, or text): the devices, or the workers of a job, each hold
      and compute a part of the model, as for `ModelParallel`, instead of a copy of it.
    - `batch_norm="shared"` normalises by the whole batch, not by each device's own part of it.
    - `balance` gives devices and workers parts of a batch by their measured speed, instead of equal parts.
    - `checkpoints` says where the run keeps checkpoints, how often, and whether it goes on with the newest, as
      `resume=True` does; `resume="folder"` goes on with what is in that folder.
    - `seed` decides the order of samples, and what devices draw in forward.
    - `timeouts` says how long to wait for other workers, in seconds.
    - `emit` is called with every event.

    Raises ConfigError for an argument that makes no sense (DeviceError: for a device), DataError for data, OutputError
    for a file that can't be written, and in a job CommunicationError for workers that are lost. What the model or the
    loss raise comes out as it is, with a note of the shapes and dtypes they were given. Ctrl-C leaves in the model what
    was learnt. (`test_data` and `sync_batch_norm` are earlier names of `validation` and of `batch_norm="shared"`.)

    In a job (gradtide run, torchrun) all workers train one model, each with its part of every batch. `sync` says how
    they synchronise, and `compress` how gradients are made smaller, as for `DataParallel`. "All devices" then are those
    of all workers. With `Local`, workers also meet at the end of every epoch.
    """
    check_model(model)
    check_unwrapped(model)
    check_kinds(lr, callbacks, checkpoints, epochs=epochs, batch_size=batch_size, seed=seed)
    check_flags("fit", scale_batch=scale_batch, balance=balance)
    check_timeouts("fit", timeouts)
    found, job = find_devices(devices), _job(sync)
    validation = check_validation(validation, test_data, metrics)
    shared_norm = check_batch_norm(batch_norm, sync_batch_norm, accumulate, balance)
    checkpoints = _resuming(checkpoints, resume)
    if split is not None:
        copies: dict[str, tuple[object, object]] = {
            "sync": (sync, "auto"),
            "compress": (compress, None),
            "balance": (balance, False),
        }
        copies |= {"accumulate": (accumulate, 1), "precision": (precision, None)}
        check_split({**copies, "strategy": (strategy, "sharded"), "scale_batch": (scale_batch, False)}, job)
    smaller = _as_compress(compress)
    check_checkpoints(checkpoints, job)
    if job is not None and timeouts is not None:
        job.wait_as(timeouts)
    if job is None and smaller is not None and smaller.codec == "auto":
        emit(CompressionDecided("compress='auto': none, since one process trains alone"))
    everywhere = len(found) * (job.size if job else 1)
    growth = everywhere if scale_batch else 1
    check_options(epochs, scale_batch, lr_scaling)
    rates = Rates(lr_scaling, growth, warmup_epochs)
    optimizers = Optimizers(optimizer, model, lr)
    if scale_batch and isinstance(train_data, torch.utils.data.DataLoader):
        raise ConfigError("scale_batch can't change a DataLoader's batch size; give the loader the larger one")
    check_strategy(strategy, len(found))
    read = as_source(train_data, batch_size * growth, seed)
    loss_of_all = make_loss(loss, loss_terms, read, found)
    loss_of_all.precision = check_precision(precision)
    source = accumulated(read, accumulate)
    tests = None if validation is None else as_source(validation, max(1024, batch_size), shuffle=False)
    test_loss = loss_of_all
    if tests is not None and read.weighted and not tests.weighted:
        tests = with_equal_weights(tests)
    elif tests is not None and tests.weighted and not read.weighted:
        test_loss = make_loss(loss, loss_terms, tests, found)
        test_loss.precision = loss_of_all.precision
    if split is None:
        check_batch(source.batch_size, len(found), job.size if job else 1)
    apart = check_local(sync, source.batches, checkpoints)
    rank = job.rank if job else 0
    follow = follow_progress(progress, epochs, source.batches, job)
    steering = Steering(
        Metrics(metrics),
        Callbacks(callbacks),
        None if schedule is None else RateSchedule(schedule, schedule_per, rates),
        _check_clip(clip_norm),
        follow,
    )
    log = find_log(rank, BatchDone, EpochDone)
    emit = steering.callbacks.around(emit if log is None else log.around(emit))
    emit = emit if follow is None else follow.around(emit)
    keeping = checkpoints or Checkpoints("")
    options = {"accumulate": accumulate, "compress": smaller and str(smaller), "split": split is not None}
    options["samples a batch"] = source.batch_size
    keeping = replace(keeping, options={**keeping.options, **options})
    if job is not None and job.size > 1:
        from gradtide.train.together.telling import agree_on_checkpoint

        keeping = agree_on_checkpoint(keeping, job)
    keeper = Keeper(keeping, rank, job.size if job else 1, emit, apart=apart, alike=split is not None)
    if follow is not None and keeper.resumed is not None and not rank:
        follow.remark(f"going on after step {keeper.resumed.position.step}, from {keeper.resumed.address}")
    if job is None and keeper.has_left_out:  # of several workers: to be sent yet, by the one that there is now
        job = _job_of_one()
    keeper.load_model(model)
    with DevicePool(found) as pool:
        kind = _kind_of_run(job, sync, smaller, emit) if split is None else _split_run(job, split)
        run = kind(model, found, pool, loss_of_all, strategy, shared_norm, seed)
        run.test_loss = test_loss
        run.steering, run.generators = steering, DataGenerators(train_data, validation)
        if balance:
            run.balance()
        run.start(optimizers, keeper)
        well = False
        try:
            history = run.train(source, tests, epochs, rates, emit, keeper)
            run.finish()
            well = True
            return history
        finally:  # an interrupted run leaves what it learnt
            if follow is not None:
                follow.close()
            keeper.close()
            if log is not None:
                log.close()
            run.close()
            if run.replicas[0].module is not model:  # a split model is there itself, unless it was lost with a worker
                model.load_state_dict(run.replicas[0].module.state_dict())
            if run.has_model:
                optimizers.give_back(run.optimizers[0], run.replicas[0].module)
            steering.callbacks.tell(FitEnd(run.history, model, run.is_main, failed=not well))


def _resuming(checkpoints: Checkpoints | None, resume: bool | str | Path) -> Checkpoints | None:
    """What `resume` adds to where checkpoints are kept."""
    if not resume:
        return checkpoints
    if checkpoints is None and resume is True:
        raise ConfigError(
            "resume=True goes on with the newest of this run's checkpoints, but it keeps none; give "
            "checkpoints=gradtide.Checkpoints(folder, every=100), or resume='folder of a checkpoint'"
        )
    return replace(checkpoints or Checkpoints(""), resume=resume if resume is True else str(resume))


def _check_clip(clip_norm: float | None) -> float | None:
    if clip_norm is not None and (
        isinstance(clip_norm, bool) or not isinstance(clip_norm, int | float) or clip_norm <= 0
    ):
        raise ConfigError(f"clip_norm is {clip_norm!r}; it must be a number above 0")
    return clip_norm


def _job(sync: object) -> "Job | None":
    """The job to train in; None for one process that trains alone."""
    if isinstance(sync, str) and read_environment().launch is None:
        return None
    from gradtide.sync import current_job

    job = current_job()
    return None if isinstance(sync, str) and job.size == 1 else job


def _job_of_one() -> "Job":
    """The one that this process trains in, alone."""
    from gradtide.sync import current_job

    return current_job()


def _as_compress(compress: "str | Compress | None") -> "Compress | None":
    """What `compress` says, unless it makes no sense."""
    if compress is None:
        return None
    from gradtide.compress import as_compress  # brings in numba

    return as_compress(compress)


def _kind_of_run(
    job: "Job | None", sync: "str | Servers | Local", compress: "Compress | None", emit: Emit
) -> "Callable[..., Run]":
    if job is None and sync == "auto":
        return Run
    from gradtide.sync.choose import Wishes  # brings in numba and the store
    from gradtide.sync.compressed import Compression
    from gradtide.train.together.run import RunTogether

    compression = None if compress is None else Compression(compress)
    wishes = Wishes(sync, compression=compression)  # which refuses a name that no strategy has
    return Run if job is None else partial(RunTogether, (job, wishes, emit))


def _split_run(job: "Job | None", split: Any) -> "Callable[..., Run]":
    from gradtide.train.together.split_run import RunSplit  # brings in numba and the store

    return partial(RunSplit, (job, split))
