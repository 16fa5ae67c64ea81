"""ModelParallel: wrap a model that is split over the devices of a job, or of one process, and take its steps."""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError, DataError, GradtideError
from gradtide.events import Emit, ParametersUpdated, ignore
from gradtide.parallel.devices.losses import Loss, LossFn, LossTerms
from gradtide.parallel.devices.pool import DevicePool, find_devices
from gradtide.parallel.devices.step import BatchResult
from gradtide.parallel.split.cut.exactness import BatchNormChoice
from gradtide.parallel.split.planning import PlanningWishes, plan_chain
from gradtide.parallel.split.run.engine import SplitEngine
from gradtide.parallel.split.run.first_values import is_on_meta
from gradtide.parallel.split.run.optimizer import check_optimizer_state, steps_by_rounding
from gradtide.parallel.split.run.setting_up import (
    SplitRequest,
    agree_on_layout,
    broadcast_model,
    describe_layout,
    first_samples,
    given_layout,
    restore,
)
from gradtide.parallel.split.run.shaping import finest_parts
from gradtide.parallel.split.run.speaking.places import DevicesPlace, InProcess, InThreads
from gradtide.parallel.split.run.whole import WholeNames, check_state
from gradtide.parallel.split.trace import refuse_parts, trace
from gradtide.parallel.split.units import Chain
from gradtide.parallel.split.wrapped import WrappedModel
from gradtide.schedule.step.layout import Layout
from gradtide.schedule.step.planned import SplitPlan
from gradtide.sync import Job, current_job
from gradtide.sync.trained import as_optimizers, find_trained
from gradtide.timeouts import Timeouts, check_timeouts

__all__ = ["ModelParallel"]

_TRACED = 4  # samples of the first batch that the model is traced with
_LOOKS = 3  # calls of a loss that is none of torch's in which it is looked at
OptimizerMaker = Callable[[Any], torch.optim.Optimizer]


class ModelParallel:
    """A model that is split: by layers, within layers, and with copies.

        model = gradtide.ModelParallel(model, optimizer, split="auto")
        for x, y in loader:                      # the global batch, the same on all ranks
            loss = model.step(x, y, loss_fn)     # forward, backward, optimizer.step() and zero_grad()

    `optimizer` is one of torch.optim, or a function from parameters to one; its groups say with which options, at
    every step. `split` is "auto", a Layout, what `gradtide.split` gives, or a layout as text or the path of its file.
    The model is taken apart, and planned where `split` is "auto", with the first batch. Every rank of a job is a
    device; `devices=` are those of one process instead. A model on the meta device gets its first values from `seed`,
    module by module, and no process holds all of it. For a loss that is not one of torch's, `count` says over how many
    terms of the targets it is a mean ("sum": it is a sum). All ranks begin with rank 0's parameters.

    `steps` is how many steps were taken: dropout's masks depend on it, so set it when a checkpoint is loaded.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: "torch.optim.Optimizer | OptimizerMaker",
        split: Any = "auto",
        *,
        devices: int | str | Sequence[str] | None = None,
        memory: str | float | None = None,
        topology: Any = None,
        micro_batches: int | None = None,
        clip_norm: float | None = None,
        batch_norm: BatchNormChoice = "",
        seed: int = 0,
        count: LossTerms = None,
        timeouts: Timeouts | None = None,
        job: Job | None = None,
        emit: Emit = ignore,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"ModelParallel splits a torch.nn.Module, not a {type(model).__name__}")
        _refuse_numbers(micro_batches, clip_norm)
        self.module, self.training, self.steps = model, model.training, 0
        self.optimizer = _made(optimizer, model)
        find_trained(model, self.optimizer, clip_norm, on_meta=True)  # refuses what can't be trained
        self._request = SplitRequest(split, memory, topology, micro_batches, batch_norm)
        self._clip_norm, self._seed, self._count, self._emit = clip_norm, seed, count, emit
        self._job = current_job() if job is None else job
        check_timeouts("ModelParallel", timeouts)
        if timeouts is not None:
            self._job.wait_as(timeouts)
        if self._job.elastic is not None:
            raise ConfigError(
                "a split model needs all of its workers: leave --min-workers, --max-workers and --max-restarts out, "
                "and resume from a checkpoint after a failure"
            )
        if devices is not None and self._job.size > 1:
            raise ConfigError("devices= are those of one process; in a job every rank is a device: leave it out")
        self._devices = devices
        self._pool: DevicePool | None = None
        self._engine: SplitEngine | None = None
        self._wrapped: WrappedModel | None = None  # as the devices know it
        self._loaded: dict[str, Any] | None = None  # a state for a model that has no values of its own yet
        self.plan: SplitPlan | None = None  # what the planner found, where it was asked, on rank 0
        self.last: BatchResult | None = None  # what the last step saw
        self._losses: dict[int, tuple[Any, Any, Loss]] = {}
        self._looked_at: list[Loss] = []
        self._closed = False

    @classmethod
    def on_pool(cls, pool: DevicePool, *arguments: Any, **options: Any) -> "ModelParallel":
        """On devices whose threads are there already."""
        made = cls(*arguments, devices=[device.name for device in pool.devices], job=Job(), **options)
        made._pool = pool
        return made

    # --- steps ---

    def step(self, x: Any, y: Tensor, loss_fn: "str | LossFn", count: LossTerms = None) -> Tensor:
        """Takes one step on a batch, which is the same on all ranks; returns its loss, on all of them."""
        if not self.training:
            raise ConfigError("the model is in evaluation; call model.train() before model.step()")
        if not isinstance(y, Tensor):
            raise ConfigError(f"the targets are a {type(y).__name__}; give one tensor, with a row a sample")
        _refuse_autocast()
        _refuse_wanted_gradients(x, y)
        count = self._count if count is None else count
        loss = self._loss(loss_fn, count)
        self._refuse_gradients()
        engine = self._ready(x, loss)
        self._refuse_parts(loss, engine.layout)
        assert self._wrapped is not None
        self._wrapped.refuse_other_training()
        self.last = engine.step(x, y, loss, self.steps)
        self.steps += 1
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # by which torch's schedulers know
        self._emit(ParametersUpdated())
        return torch.tensor(self.last.loss, dtype=torch.float64)

    def _refuse_gradients(self) -> None:
        """Those that are there before the first step would be lost; later the model itself has none."""
        if self._engine is None:
            for name, parameter in self.module.named_parameters():
                if parameter.grad is not None and bool(parameter.grad.ne(0).any()):
                    raise ConfigError(
                        f"{name} has a gradient already, which model.step() would not add to its own; call "
                        "optimizer.zero_grad() before"
                    )

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the model returns for a batch, whole, on all ranks; without gradients."""
        if self.training and torch.is_grad_enabled():
            raise ConfigError(
                "a split model trains by loss = model.step(x, y, loss_fn); to evaluate it call model.eval(), or "
                "model(x) under torch.no_grad()"
            )
        _refuse_autocast()
        given = named if named else inputs[0] if len(inputs) == 1 else inputs
        return self._ready(given, None).evaluate(given, self.steps)

    def _loss(self, fn: Any, count: LossTerms) -> Loss:
        if isinstance(fn, Loss):
            return fn
        known = self._losses.get(id(fn))
        if known is None or known[0] is not fn or known[1] is not count:
            devices = [] if self._pool is None else [device.torch_device for device in self._pool.devices]
            known = self._losses[id(fn)] = (fn, count, Loss(fn, count, devices))
        return known[2]

    def _refuse_parts(self, loss: Loss, layout: Layout) -> None:
        last = layout.stages[-1]
        parts = layout.micro_batches * last.copies
        if not loss.terms.known and all(one is not loss for one in self._looked_at):
            self._looked_at.append(loss)
            loss.looks, loss.repeats = _LOOKS, _LOOKS if parts * last.shards > 1 else 0
        if parts > 1 and not (loss.terms.known or loss.terms.said):
            name = getattr(loss.function, "__name__", type(loss.function).__name__)
            raise ConfigError(
                f"nobody knows how the losses of {parts} parts make up the batch's: {name} is a function of your own, "
                "or has weights that might be its samples'; say count= (loss_terms= in fit), a function from targets "
                'to the number of terms it is a mean over, or "sum"'
            )

    def _ready(self, x: Any, loss: Loss | None) -> SplitEngine:
        """Takes the model apart, the first time."""
        if self._closed:
            raise ConfigError("this model was closed; wrap it again")
        if self._engine is None:
            place = self._place()
            try:
                self._engine = self._split(place, x, loss)
            except BaseException:
                place.close()
                raise
            if isinstance(place, InThreads):  # threads don't end by themselves when nobody uses the model any more
                weakref.finalize(self, place.close)
        assert self._wrapped is not None
        self._wrapped.refuse_changes()
        return self._engine

    def _split(self, place: DevicesPlace, x: Any, loss: Loss | None) -> SplitEngine:
        broadcast_model(self.module, self._job.group)
        chain = trace(self.module, first_samples(x, _TRACED))
        engine = SplitEngine(
            self.module,
            chain,
            self._choose_layout(chain, place, x, loss),
            self.optimizer,
            place,
            clip_norm=self._clip_norm,
            seed=self._seed,
            batch_norm=self._request.batch_norm,
            emit=self._emit,
        )
        if self.optimizer.state:
            engine.load_optimizer_state(self._by_name(self.optimizer.state_dict()["state"]))
            self.optimizer.state.clear()
        if self._loaded is not None:
            engine.load_state_dict(self._loaded)
            self._loaded = None
        engine.release_model()
        self._wrapped = WrappedModel(self.module, self.optimizer)
        return engine

    def _choose_layout(self, chain: Chain, place: DevicesPlace, x: Any, loss: "Loss | None") -> Layout:
        """Rank 0 does, and tells the others."""
        group, topology = self._job.group, self._request.topology
        if self._request.is_automatic and topology is None and group is not None and not group.on_one_host:
            topology = group.probe(remembered=True)  # by all ranks
        if self._job.rank:
            return agree_on_layout(None, group)
        try:
            if self._request.is_automatic:
                self.plan = self._plan(chain, place, x, topology, loss)
                layout = self.plan.layout
            else:
                layout = given_layout(self._request, [unit.name for unit in chain.units])
            self._refuse_mixing(chain, layout, x)
            return agree_on_layout(layout, group)
        except GradtideError as error:
            return agree_on_layout(None, group, error)

    def _plan(self, chain: Chain, place: DevicesPlace, x: Any, topology: Any, loss: "Loss | None") -> SplitPlan:
        request, alone = self._request, len(place.here) == place.size
        wishes = PlanningWishes(
            devices=place.size,
            topology=topology,
            memory=request.memory,
            micro_batches=() if request.micro_batches is None else request.micro_batches,
            batch_norm=request.batch_norm,
            clip=self._clip_norm is not None,
            whole_loss=loss is not None and not (loss.terms.known or loss.terms.said),
            threads=None if alone else torch.get_num_threads(),
        )
        with torch.random.fork_rng(devices=[]):  # the program's own order of samples goes on as if nothing was measured
            return plan_chain(chain, x, _samples(x), self.optimizer, wishes).using_all()

    def _refuse_mixing(self, chain: Chain, layout: Layout, x: Any) -> None:
        """A capacity of an expert is reached by a whole batch, and neither by the few samples of a trace nor by its
        parts."""
        parts = finest_parts(layout, _samples(x))
        if len(parts) > 1 and not is_on_meta(self.module):
            refuse_parts(chain, self.module, x, parts)

    def _place(self) -> DevicesPlace:
        timeout_s = self._job.timeouts.step_s
        if self._devices is None:
            return InProcess(self._job.group)
        found = self._pool.devices if self._pool is not None else find_devices(self._devices)
        place = InThreads(found, timeout_s, self._pool)
        weakref.finalize(self, place.close).atexit = False  # threads of a model that nobody has closed, or has any more
        return place

    # --- modes ---

    def train(self, mode: bool = True) -> "ModelParallel":
        """As of any module: dropout and batch normalisation behave as in training."""
        self.training = mode
        self.module.train(mode)
        if self._engine is not None and self._wrapped is not None:
            self._engine.train_mode(mode)
            self._wrapped.remember_modes()
        return self

    def eval(self) -> "ModelParallel":
        """As of any module: dropout and batch normalisation behave as in evaluation."""
        return self.train(False)

    # --- state ---

    def parameters(self) -> Any:
        """Refused: they are on the devices, in parts."""
        raise ConfigError(
            "a split model's parameters are on its devices, in parts: clip with clip_norm=, look at them in "
            "state_dict(), and evaluate with model.eval() and model(x)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The whole model's state, with its own names, on every rank; all ranks call it. A plain model loads it."""
        if self._engine is None:
            return dict(self.module.state_dict() if self._loaded is None else self._loaded)
        return self._engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a whole state, of any layout; all ranks load the same. The state of another model is refused."""
        check_state(WholeNames(self.module) if self._engine is None else self._engine.names, state)
        if self._engine is not None:
            self._engine.load_state_dict(state)
        elif is_on_meta(self.module):
            self._loaded = {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
        else:
            self.module.load_state_dict(state)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The state of the whole optimizer, as torch has it, on every rank; all ranks call it."""
        found = self.optimizer.state_dict()
        if self._engine is not None:
            states = self._engine.optimizer_state()
            order = [name for name in self._parameter_names() if name is not None]
            found["state"] = {number: states[name] for number, name in enumerate(order) if name in states}
        return found

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what optimizer_state_dict, or torch's own optimizer, gave under any layout; all ranks load the same."""
        if not {"param_groups", "state"} <= set(state):
            raise DataError("this is no optimizer's state: it has no param_groups and state, as optimizer_state_dict()")
        groups = state["param_groups"]
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if [len(group["params"]) for group in groups] != sizes:
            raise DataError(
                "the optimizer's state is of another model: its groups have "
                f"{[len(group['params']) for group in groups]} parameters, and this one's {sizes}"
            )
        names = WholeNames(self.module) if self._engine is None else self._engine.names
        shapes = {first: names.shapes[key] for key, first in names.keys.items()}
        check_optimizer_state(self.optimizer, groups, self._by_name(state["state"]), shapes)
        if self._engine is None:
            self.optimizer.load_state_dict(dict(state))
            return
        for own, theirs in zip(self.optimizer.param_groups, groups, strict=True):
            own.update({name: copy.deepcopy(value) for name, value in theirs.items() if name != "params"})
        self._engine.load_optimizer_state(self._by_name(state["state"]))

    def _by_name(self, states: Mapping[int, Any]) -> dict[str, Any]:
        names = self._parameter_names()
        return {names[number]: value for number, value in states.items()}

    def _parameter_names(self) -> list[str]:
        """In the order of the optimizer's groups."""
        first = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [first[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ConfigError("a split model is not copied or pickled: its devices are elsewhere; take its state_dict()")

    # --- the rest ---

    @property
    def layout(self) -> Layout | None:
        """Who computes what; known from the first batch on."""
        return None if self._engine is None else self._engine.layout

    def explain(self) -> str:
        """How the model is split."""
        if self._engine is None:
            return "the model is split with its first batch"
        said = describe_layout(self._engine.layout) if self.plan is None else self.plan.explain()
        rounded = self._engine.chain.rounded
        if not rounded or not steps_by_rounding(self.optimizer):
            return said
        more = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        return (
            f"{said}. Not equal to one device: {rounded[0]}{more}, whose gradient is nothing but rounding, which "
            f"{type(self.optimizer).__name__} divides by its own size; the outputs don't depend on it"
        )

    def give_back(self) -> None:
        """Gives the wrapped model and its optimizer back what devices hold of them. All ranks call it."""
        if self._engine is not None:
            state, rule = self.state_dict(), self.optimizer_state_dict()
            restore(self.module, state)
            self.optimizer.load_state_dict(rule)
            self._remember()

    def take_again(self) -> None:
        """After give_back: their memory is free again, and training may go on."""
        if self._engine is not None:
            self._engine.release_model()
            self.optimizer.state.clear()
            self._remember()

    def _remember(self) -> None:
        assert self._wrapped is not None
        self._wrapped.remember()

    def close(self) -> None:
        """Ends the training. Call state_dict() before: it has what was learnt."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._closed = None, True


def _made(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer | list | tuple) and callable(optimizer):
        optimizer = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    several = as_optimizers(optimizer)
    if len(several) > 1:
        raise ConfigError("a split model has one optimizer; give it several groups instead")
    return several[0]


def _samples(x: Any) -> int:
    return len(next(leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim()))


def _refuse_numbers(micro_batches: Any, clip_norm: Any) -> None:
    if micro_batches is not None and (type(micro_batches) is not int or micro_batches < 1):
        raise ConfigError(f"micro_batches is {micro_batches!r}; it must be a whole number, 1 or more")
    if clip_norm is not None and (not isinstance(clip_norm, int | float) or not clip_norm > 0):
        raise ConfigError(f"clip_norm is {clip_norm!r}; it must be a number above 0")


def _refuse_wanted_gradients(x: Any, y: Tensor) -> None:
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in (*pytree.tree_leaves(x), y)):
        raise ConfigError(
            "an input or the targets ask for a gradient, which a split model gives to nobody outside it; detach() "
            "them, or make what computes them a part of the model"
        )


def _refuse_autocast() -> None:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigError("autocast around a split model is not offered: its devices would not know; leave it out")
