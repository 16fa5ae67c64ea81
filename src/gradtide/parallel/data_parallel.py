"""DataParallel: wrap a model, and every worker trains the same one."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradtide.errors import CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsReady, ParametersUpdated, ignore
from gradtide.heap import keep_freed_memory
from gradtide.schedule.model import Schedule
from gradtide.store import Store
from gradtide.sync import Job, Servers, current_job
from gradtide.sync.choose import Wishes, choose_way
from gradtide.sync.servers import ServersWay
from gradtide.sync.state import Snapshot
from gradtide.sync.ways import Trained

__all__ = ["DataParallel"]

T = TypeVar("T")


class DataParallel(nn.Module):
    """A model whose parameters every worker of the job updates alike.

        model = gradtide.DataParallel(model, optimizer)
        for x, y in gradtide.shard(loader):
            loss = loss_fn(model(x), y)
            loss.backward()              # gradients leave while backward goes on
            model.step()                 # instead of optimizer.step() and zero_grad()

    `sync` is "auto", the name of a strategy ("ring"), a schedule's file, or `gradtide.Servers("bsp")`. All workers make
    it together and begin with worker 0's parameters and buffers. `explain()` says which way was chosen and why.
    `emit` is called with every event of a step.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        sync: str | Path | Schedule | Servers = "auto",
        *,
        clip_norm: float | None = None,
        share_parameters: bool | None = None,
        overlap: bool = True,
        job: Job | None = None,
        emit: Emit = ignore,
    ) -> None:
        super().__init__()
        keep_freed_memory()
        self._emit = emit
        self._last: Snapshot
        self.module, self.optimizer = module, optimizer
        self._job = current_job() if job is None else job
        self._trained = _find_trained(module, optimizer, clip_norm)
        self._wishes = Wishes(sync, share_parameters, overlap)
        self._synchronising, self._joining = True, False
        self._weight: float | None = None  # what this worker's gradient counts in this step, once that is known
        self._share_buffers()
        self._way = choose_way(self._trained, self._job, self._wishes, emit)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient(index))
            for index, parameter in enumerate(self._trained.parameters)
        ]

    # --- training ---

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def step(self) -> None:
        """Synchronises what has not left yet, updates every worker's parameters alike, and clears the gradients."""
        self._emit(GradientsReady())
        finished = False
        try:
            self._way.step(self._weight_now())
            finished = True
            self._share_buffers()
            if self._is_called():
                self._go_on(None, finished)
        except CommunicationError as error:
            if self._job.elastic is None or not self._collective:
                raise
            self._go_on(error, finished)
        self._weight = None
        self._emit(ParametersUpdated())
        # What a learning-rate scheduler looks at before it warns that the optimizer has not stepped yet.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def synchronise(self) -> None:
        """Afterwards every .grad is the one of all workers, to look at or to change before step()."""
        self._way.synchronise(self._weight_now())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward in here stay, and add up, until a backward outside of it."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    def together(self, work: Callable[[], T], alone: Callable[[], T]) -> T:
        """Runs what all workers do together besides a step, such as adding up what each has seen of an epoch.

        When one dies meanwhile, those who are left go on, and each takes what `alone` gives: some of them may have
        finished the work and be in the next step already, so nobody can ask for it again.
        """
        try:
            return work()
        except CommunicationError as error:
            if self._job.elastic is None or not self._collective:
                raise
            self._go_on(error, finished=True)
            return alone()

    def _is_called(self) -> bool:
        """Does somebody come or go? All workers of a group must see it at the end of the same step."""
        elastic = self._job.elastic
        if elastic is None:
            return False
        notice = elastic.notice()
        if isinstance(self._wishes.sync, Servers):  # there everybody comes and goes by itself
            if notice is not None and elastic.number in notice.going:
                assert isinstance(self._way, ServersWay)
                self._way.depart()
            return False
        called = torch.tensor([int(notice is not None and notice.generation == elastic.generation)])
        return bool(called if self._job.group is None else self._job.group.all_reduce(called))

    def _go_on(self, error: CommunicationError | None, finished: bool) -> None:
        """A peer died, or somebody comes or goes: the next members go on from the last finished step, and `shard` gives
        the batch of a step that was lost again."""
        assert self._job.elastic is not None
        while True:
            self._job.undone = not finished
            try:
                self._job.regroup()  # from here on nobody writes to what the ranks shared
                if self._way is not None:
                    self._way.close()
                    self._last, self._way = Snapshot(self._trained), None  # type: ignore[assignment]
                self._last.restore()
                self._share_buffers()
                self._way = choose_way(self._trained, self._job, self._wishes, self._emit)
            except CommunicationError as another:
                if isinstance(another, PeerLost | PeerTimeout):
                    continue  # one more died meanwhile
                raise another from error
            del self._last
            return

    @property
    def _collective(self) -> bool:
        return not isinstance(self._wishes.sync, Servers) and self._job.group is not None

    @property
    def store(self) -> Store | None:
        """Where the parameters are, if they are on servers."""
        return self._way.store if isinstance(self._way, ServersWay) else None

    @property
    def servers_step(self) -> bool:
        """Whether the optimizer's state is on servers."""
        return isinstance(self._way, ServersWay) and self._way.servers_step

    def begin_again(self) -> None:
        """After RolledBack, when the servers hold other values than they did: takes those."""
        if isinstance(self._way, ServersWay):
            self._way.begin_again()
        self._weight = None

    def explain(self) -> str:
        """Which way the gradients go, and why."""
        return self._way.reason

    def close(self) -> None:
        """Ends the training together; the model keeps its parameters."""
        for hook in self._hooks:
            hook.remove()
        self._way.close()

    def _on_gradient(self, index: int) -> Any:
        def ready(parameter: Tensor) -> None:
            if self._synchronising:
                self._way.ready(index, self._weight_now())

        return ready

    # --- workers with more and with fewer batches ---

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """For workers whose loops have different lengths (`shard` makes them equal, and needs no such thing).

        Who leaves this block first takes part in the others' steps, with nothing to add, until all are done.
        """
        self._joining = True
        try:
            yield
            while self._collective:
                self._weight = 0.0
                if not self._how_many_go_on(False):
                    break
                self.step()
        finally:
            self._joining, self._weight = False, None

    def _weight_now(self) -> float:
        if self._weight is None:
            going = self._how_many_go_on(True) if self._joining and self._collective else 0
            self._weight = 1.0 / going if going else self._job.weight
        return self._weight

    def _how_many_go_on(self, this_one: bool) -> int:
        assert self._job.group is not None
        return int(self._job.group.all_reduce(torch.tensor([int(this_one)])))

    # --- what else a module is asked for ---

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The model's own, with its own names: a plain model loads it."""
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        """All workers load the same."""
        return self.module.load_state_dict(state_dict, *arguments, **options)

    def _share_buffers(self) -> None:
        """Worker 0's buffers (the running statistics of batch normalisation, say) become everybody's."""
        if self._collective and self._trained.buffers:
            assert self._job.group is not None
            for _, buffer in self._trained.buffers:
                self._job.group.broadcast(buffer)


def _find_trained(module: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> Trained:
    if inspect.signature(optimizer.step).parameters["closure"].default is inspect.Parameter.empty:
        raise ConfigError(
            f"{type(optimizer).__name__} steps with a closure, which model.step() does not take; use another optimizer"
        )
    if clip_norm is not None and clip_norm <= 0:
        raise ConfigError(f"clip_norm is {clip_norm:g}; it must be above 0")
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad and id(p) in stepped]
    if not named:
        raise ConfigError(
            f"the optimizer has no parameter of {type(module).__name__} that asks for a gradient; make it with "
            "model.parameters() before wrapping"
        )
    foreign = stepped - {id(p) for p in module.parameters()}
    if foreign:
        raise ConfigError(
            f"{len(foreign)} of the optimizer's parameters are not the model's; give each model its own optimizer"
        )
    names, parameters = zip(*named, strict=True)
    return Trained(names, parameters, optimizer, clip_norm, list(module.named_buffers()))
