"""A strategy of Lightning's Trainer: what DDPStrategy does, with gradients that go over gradtide."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.lightning.sharing import why_not_shared
from gradtide.parallel import DataParallel
from gradtide.schedule.model import Schedule
from gradtide.sync import Job, current_job

__all__ = ["GradtideStrategy"]


class GradtideStrategy(DDPStrategy):
    """Trains as under DDP; gradients, and what Lightning itself exchanges between processes, go over gradtide.

    `sync` is "auto", the name of a strategy ("ring") or a schedule's file. `share_parameters` is as for
    `gradtide.DataParallel`; left out, parameters are shared where nothing in the training looks at gradients. The rest
    is DDPStrategy's: `timeout=`, `process_group_backend=`, `cluster_environment=` and so on.
    """

    strategy_name = "gradtide"

    def __init__(
        self, sync: str | Path | Schedule = "auto", *, share_parameters: bool | None = None, **options: Any
    ) -> None:
        if not isinstance(sync, str | Path | Schedule):
            raise ConfigError(
                f"sync={type(sync).__name__}(...) does not go with Lightning, whose checkpoints would leave out what "
                "it remembers; use 'auto' or a strategy's name, or gradtide.fit"
            )
        refused = [name for name in options if name.startswith("ddp_comm") or name == "model_averaging_period"]
        refused += [name for name in _OF_DDP if name in options]
        if refused:
            raise ConfigError(f"{refused[0]}= is for DDP itself; GradtideStrategy has no use for it: leave it out")
        super().__init__(**options)
        self._sync, self._share = sync, share_parameters
        self._wrapper: DataParallel | None = None
        self._job: Job | None = None
        self._failed = False

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """DDP's names stay DDP's; the package registers this one's."""

    def _get_process_group_backend(self) -> str:
        if self._process_group_backend is None and self.root_device.type == "cpu":
            return "gradtide"
        return str(super()._get_process_group_backend())

    def configure_ddp(self) -> None:
        """Nothing yet: the optimizers are made after this."""

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._failed = False
            _check_precision(self.precision_plugin)
            self._wrap(trainer)

    def _wrap(self, trainer: Any) -> None:
        """All workers do it together, and begin with what worker 0 has."""
        module = self.lightning_module
        share = self._share
        if why := why_not_shared(trainer, module):
            if share:
                raise ConfigError(f"share_parameters=True, but {why}, and no worker would have the whole gradient")
            share = False
        self._job = self._job or _find_job()
        self._wrapper = DataParallel(module, self.optimizers, self._sync, share_parameters=share, job=self._job)
        self.model = self._wrapper

    # --- a step ---

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Manual optimization calls backward in here: each of its losses is watched by itself."""
        if self._wrapper is None or self.lightning_module.automatic_optimization:
            return super().training_step(*arguments, **named)
        with self.precision_plugin.train_step_context(), self._wrapper.entered():
            return self.lightning_module.training_step(*arguments, **named)

    def pre_backward(self, closure_loss: Tensor) -> None:
        if self._wrapper is not None and not self.lightning_module.automatic_optimization:
            self._wrapper.watch(closure_loss)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        if self._wrapper is None:
            yield
            return
        with self._wrapper.no_sync():
            yield

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **options: Any
    ) -> Any:
        """The closure computes the gradients: they must be those of all workers before the optimizer looks at them."""
        if self._wrapper is None:
            return super().optimizer_step(optimizer, closure, model, **options)
        module = self.lightning_module if model is None else model
        result = self.precision_plugin._wrap_closure(module, optimizer, closure)
        if options or not module.automatic_optimization:
            optimizer.step(**options)
        else:
            self._wrapper.step(optimizer)
        return result

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """A mean is a sum that is divided, of whole numbers too, as Lightning has it over Gloo."""
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if not is_mean or not isinstance(tensor, Tensor) or not dist.is_initialized():
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        return total.copy_(total / dist.get_world_size(group))

    # --- the end ---

    def on_exception(self, exception: BaseException) -> None:
        self._failed = True
        super().on_exception(exception)

    def teardown(self) -> None:
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            self.model = self.lightning_module
            if self._failed:
                wrapper.abandon()
            else:
                wrapper.close()
        super().teardown()

    def explain(self) -> str:
        """Which way the gradients go, and why; while it trains."""
        if self._wrapper is None:
            raise ConfigError("nothing is trained now; ask in a hook, on_train_end say")
        return self._wrapper.explain()


_OF_DDP = (
    "bucket_cap_mb",
    "broadcast_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "mixed_precision",
)


def _find_job() -> Job:
    """The job that a launcher started this process for; else that of Lightning's own launcher."""
    job = current_job()
    if job.elastic is not None:
        raise ConfigError(
            "Lightning's Trainer can't go on without a worker, or with another; start it without --min-workers and "
            "--max-workers, or train with gradtide.fit"
        )
    if job.size == dist.get_world_size():
        return job
    return Job.of(Group.beside())


def _check_precision(plugin: Any) -> None:
    """A plugin that steps in a way of its own would step with this worker's gradient alone."""
    known = type(plugin).optimizer_step in (Precision.optimizer_step, MixedPrecision.optimizer_step)
    if not known or getattr(plugin, "scaler", None) is not None:
        raise ConfigError(
            f"precision {type(plugin).__name__} steps in a way of its own; use precision='bf16-mixed', or '32-true'"
        )
