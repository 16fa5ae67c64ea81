"""DataParallel: wrap a model, and every worker trains the same one."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradtide.calling import check_flags, refuse_foreign_names
from gradtide.compress import Compress, as_compress
from gradtide.errors import ConfigError
from gradtide.events import BatchStarted, Emit, ParametersUpdated, ignore
from gradtide.observe.event_log import find_log
from gradtide.parallel.pace import StepPace
from gradtide.parallel.worker_random import WorkerRandom
from gradtide.schedule.model import Schedule
from gradtide.sync import Job, Local, Servers, current_job
from gradtide.sync.choose import Wishes
from gradtide.sync.compressed import Compression
from gradtide.sync.reduce import Reduce
from gradtide.sync.servers import ServersWay
from gradtide.sync.synchroniser import Synchroniser
from gradtide.sync.trained import as_optimizers, find_trained
from gradtide.timeouts import Timeouts, check_timeouts

__all__ = ["DataParallel"]

_OF_DDP = {
    "device_ids output_device device dim": "move the model to its device: DataParallel(model.to(device), optimizer)",
    "find_unused_parameters static_graph": "leave it out: parameters that a step does not use are handled anyway",
    "bucket_cap_mb gradient_as_bucket_view": "leave it out: buckets are made by themselves",
    "process_group group backend world_size rank workers": "leave it out: a worker finds its job by itself, under "
    "gradtide run or torchrun",
    "lr learning_rate": "say DataParallel(model, torch.optim.SGD(model.parameters(), lr=0.1))",
    "strategy": "it is called sync=",
    "max_norm max_grad_norm gradient_clip_val clip_grad_norm": "it is called clip_norm=",
    "mixed_precision precision amp": "use torch.autocast around the forward pass",
}


class DataParallel(nn.Module):
    """A model whose parameters every worker of the job updates alike.

        model = gradtide.DataParallel(model, optimizer)
        for x, y in gradtide.shard(loader):
            loss = loss_fn(model(x), y)
            loss.backward()              # gradients leave while backward goes on
            model.step()                 # optimizer.step() and zero_grad()

    `optimizer` is one of torch.optim, or a list of them. `sync` is "auto", the name of a strategy ("ring"), a
    schedule's file, `gradtide.Servers("bsp")` or `gradtide.Local(50)`. `compress` is a codec ("int8", "topk:0.01",
    "auto") or `gradtide.Compress(...)`: gradients travel as it makes them. `clip_norm` bounds the norm of the whole
    gradient. `overlap=False` lets gradients leave only after backward. With `broadcast_buffers` all workers have worker
    0's buffers. `timeouts` says how long to wait for others, in seconds. All workers make it together and begin with
    worker 0's parameters and buffers. `explain()` says which way was chosen and why. `emit` is called with every event
    of a step.

    Where workers step (see `explain`), `.grad` is the gradient of all workers when a backward outside of `no_sync`
    returns, as under DDP: clip it, scale it, call `optimizer.step()`. Where parameters are shared, doing so ends the
    sharing, once and on all workers. Where servers step it is refused; `share_parameters=False` makes it right there.

    Raises ConfigError for what can't be trained together, Mismatch if workers want different things, and PeerLost or
    PeerTimeout for workers that are gone or late.
    """

    @refuse_foreign_names(_OF_DDP, "say DataParallel(model, optimizer), and the others by name")
    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        sync: str | Path | Schedule | Servers | Local = "auto",
        *,
        compress: str | Compress | None = None,
        clip_norm: float | None = None,
        share_parameters: bool | None = None,
        overlap: bool = True,
        broadcast_buffers: bool = True,
        timeouts: Timeouts | None = None,
        job: Job | None = None,
        emit: Emit = ignore,
    ) -> None:
        super().__init__()
        settings = as_compress(compress)
        if isinstance(module, DataParallel):
            raise ConfigError("this model is wrapped already; wrap the model itself, once")
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"DataParallel: a model is needed first, a torch.nn.Module, not {_kind_of(module)}; say "
                "DataParallel(model, optimizer)"
            )
        check_flags("DataParallel", overlap=overlap, broadcast_buffers=broadcast_buffers)
        if share_parameters is not None:
            check_flags("DataParallel", share_parameters=share_parameters)
        check_timeouts("DataParallel", timeouts)
        self.module, self._optimizer = module, optimizer
        self._job, self._sync = current_job() if job is None else job, sync
        if timeouts is not None:
            self._job.wait_as(timeouts)
        _refuse_sync_batch_norm(module, self._job)
        self._log = find_log(self._job.rank, ParametersUpdated)
        self._random = WorkerRandom(self._job)
        self._pace = StepPace(emit if self._log is None else self._log.around(emit))
        closures = isinstance(sync, Local) and sync.over is not None and not sync.after  # others see changes alone
        self._synchroniser = Synchroniser(
            find_trained(module, optimizer, clip_norm, broadcast_buffers=broadcast_buffers, closures=closures),
            self._job,
            Wishes(sync, share_parameters, overlap, None if settings is None else Compression(settings), trial=True),
            self._pace.observe,
        )
        self._loading: AbstractContextManager[None] | None = None
        self.register_load_state_dict_pre_hook(_begin_loading)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_end_loading)  # type: ignore[no-untyped-call]

    @property
    def optimizer(self) -> torch.optim.Optimizer | Sequence[torch.optim.Optimizer]:
        """What `step` steps. All workers may give another one, in mid-training."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> None:
        self._synchroniser.use(as_optimizers(optimizer))
        self._optimizer = optimizer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model gives; the backward that follows synchronises its gradients."""
        if not torch.is_grad_enabled():
            self._synchroniser.ask_to_look()
            return self.module(*inputs, **named)
        self._before()
        try:
            outputs = self.module(*inputs, **named)
        except BaseException:
            self._random.leave()
            raise
        self._after(outputs)
        return outputs

    def train(self, mode: bool = True) -> "DataParallel":
        """As every module's; a worker that evaluates has all compare their parameters with the next step."""
        if not mode:
            self._synchroniser.ask_to_look()
        super().train(mode)
        return self

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self) -> None:
        if self._log is not None:  # a loop of the user's own says nothing itself
            self._log.observe(BatchStarted())
        self._synchroniser.before_forward()
        self._random.enter()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, outputs: Any) -> None:
        self._random.leave()
        self._synchroniser.watch(outputs)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """For a loop that calls parts of the model, and backward, by itself: what it does in here counts as a forward.
        Each loss is given to `watch` before its backward."""
        self._before()
        try:
            yield
        finally:
            self._random.leave()

    def watch(self, loss: Any) -> None:
        """Within `entered`: the next backward begins at this loss."""
        self._synchroniser.before_forward()
        self._synchroniser.watch(loss)

    def step(self, optimizer: torch.optim.Optimizer | None = None) -> bool:
        """Updates every worker's parameters in the same way, and clears the gradients: `optimizer.step()` and
        `zero_grad()`, of all optimizers or of one. False: the step was lost with a worker, and `shard` gives its
        batches again."""
        return self._synchroniser.step(None if optimizer is None else as_optimizers(optimizer))

    def synchronise(self) -> None:
        """Makes every .grad that of all workers. A backward outside of no_sync does so anyway."""
        self._synchroniser.synchronise()

    def weigh(self, terms: float) -> None:
        """Says, before a backward, over how many terms (tokens, say) this worker's loss is a mean, when the number
        differs from worker to worker. All workers call it, for each backward."""
        self._synchroniser.weigh(terms)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within this context, gradients stay on this worker and add up, until a backward outside of it."""
        return self._synchroniser.no_sync()

    def edit(self) -> AbstractContextManager[None]:
        """Within `with model.edit(): ...`, parameters may be changed by hand, by all workers at once. Afterwards all
        workers have those of worker 0."""
        return self._synchroniser.edit()

    def join(self) -> AbstractContextManager[None]:
        """For workers whose loops have different lengths (`shard` makes them equal, and needs no such thing).

        A worker that leaves this block first takes part in the others' steps, with nothing to add, until all are done.
        """
        return self._synchroniser.join()

    def meet(self) -> None:
        """With `Local`: all workers meet now, and have the same parameters afterwards. Without `Local` they always
        have."""
        self._synchroniser.meet()

    def explain(self, *, probe: bool = False) -> str:
        """Says which way the gradients go, and why; between hosts, how long that took; after some steps, how much of a
        step synchronising takes, and would take with (without) local steps; and how the result differs from that of one
        process, if it does. probe: as in Group.explain; all workers call it then."""
        way = self._synchroniser.way
        group = self._job.group if isinstance(way, Reduce) else None  # over servers there may be none, nor need be
        over_links = group is not None and not group.on_one_host and isinstance(way, Reduce) and way.uses(group)
        links = [group.explain(probe=probe)] if over_links and group is not None else []
        every = self._sync.every if isinstance(self._sync, Local) else None
        pace = self._pace.explain(every) if self._job.size > 1 or every else []
        shares = [said] if self._job.balance is not None and (said := self._job.balance.explain()) else []
        return "; ".join([way.reason, *links, *pace, *shares, *self._differences()])

    def _differences(self) -> list[str]:
        if self._job.size == 1:
            return []
        found, modules, mode, way = [], list(self.module.modules()), _mode(self._sync), self._synchroniser.way
        if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in modules):
            found.append("unlike in one process, batch normalisation sees each worker's own part of a batch")
        if any(map(_draws, modules)):
            found.append("unlike in one process, each worker draws its own dropout masks")
        if self._job.reading:
            found.append(self._job.reading)
        if mode != "bsp" and not (isinstance(way, ServersWay) and way.workers_step):
            found.append(f"unlike in one process, {mode} steps with values that may be some steps old")
        if mode == "async":
            found.append("a worker that closes before others keeps the values of then")
        return found

    def close(self) -> None:
        """Ends the training together; the model keeps its parameters."""
        try:
            self._synchroniser.finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """After a failure, instead of `close`: waits for nobody. What is under way is lost; the model keeps its
        parameters."""
        self._synchroniser.close()
        if self._log is not None:
            self._log.close()

    # --- what a script keeps ---

    @property
    def state(self) -> dict[str, Any]:
        """Plain values that the script keeps in here (a scheduler's `state_dict()`, say). A worker that comes later, or
        is started again, finds them in its own."""
        return self._job.state

    @property
    def epoch(self) -> int:
        """The epoch that the script is in. The script sets it, and a worker that comes later begins with it."""
        return self._job.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._job.epoch = epoch

    @property
    def random_state(self) -> torch.Tensor | None:
        """Where this worker's own stream of random numbers is (dropout's), to be saved and set again; None when there
        is one worker, which uses torch's."""
        return self._random.state

    @random_state.setter
    def random_state(self, state: torch.Tensor | None) -> None:
        self._random.state = state

    def sync_state(self) -> dict[str, Any]:
        """With `Local`: what the outer optimizer remembers, to be saved where workers have met, beside the model and
        each worker's own optimizer. With `compress=`: what was left out of this worker's gradients, or changes, so
        far, which servers' own checkpoints lack. Tensors and numbers; nothing without both."""
        return self._synchroniser.state()

    def load_sync_state(self, state: Mapping[str, Any]) -> None:
        """All workers go on with what worker 0 gives, and each with what compression had left out of its own gradients:
        the worker that saved it loads it; on fewer workers, let one load a sum. (Each loads its own optimizer's state
        after the model is wrapped: wrapping makes it worker 0's.)"""
        self._synchroniser.load_state(state)

    # --- what else a module is asked for ---

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The model's own, with its own names: a plain model loads it."""
        self._synchroniser.ask_to_look()
        apart = self._synchroniser.way.apart
        if apart:
            warnings.warn(
                f"each worker has taken {apart} steps by itself since they last met, and these are this worker's own "
                "values; save at a multiple of Local's steps, or call model.meet() on all workers first",
                stacklevel=2,
            )
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        """All workers load the same."""
        with self.edit():
            return self.module.load_state_dict(state_dict, *arguments, **options)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self._synchroniser.around(lambda: nn.Module._apply(self, fn, recurse))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """The model alone, with parameters of its own: an average (AveragedModel) or a teacher, say."""
        return copy.deepcopy(self.module, memo)

    def __getstate__(self) -> Any:
        raise ConfigError("a wrapped model can't be pickled; save model.state_dict(), or what it wraps, model.module")


def _kind_of(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def _refuse_sync_batch_norm(module: nn.Module, job: Job) -> None:
    """torch's own has nobody to ask without a group of torch.distributed's, and says nothing of it."""
    if (job.size > 1 or job.elastic is not None) and not dist.is_initialized():
        for name, layer in module.named_modules():
            if isinstance(layer, nn.SyncBatchNorm):
                raise ConfigError(
                    f"{name} is a SyncBatchNorm, which would quietly normalise by each worker's own part: it needs "
                    "torch.distributed.init_process_group() first, and an accelerator; or use BatchNorm, or GroupNorm"
                )


def _mode(sync: object) -> str:
    servers = sync.over if isinstance(sync, Local) else sync
    return servers.mode if isinstance(servers, Servers) else "bsp"


def _draws(module: nn.Module) -> bool:
    """Whether its forward draws random numbers in training, as far as a module shows it."""
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
    share = module.p if is_dropout else getattr(module, "dropout", 0)  # as LSTM and MultiheadAttention have it
    return isinstance(module, nn.RReLU) or (isinstance(share, int | float) and share > 0)


def _begin_loading(model: DataParallel, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """A parent of the wrapper loads what it saved, where the wrapper has no name of its own."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)
    model._loading = model.edit()
    model._loading.__enter__()


def _end_loading(model: DataParallel, keys: Any) -> None:
    if model._loading is not None:
        model._loading.__exit__(None, None, None)
        model._loading = None
    for names in (keys.missing_keys, keys.unexpected_keys):
        names[:] = [name.replace("module.", "", 1) for name in names]
