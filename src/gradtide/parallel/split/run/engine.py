"""A model that is split, on the devices of a place: steps, evaluation, and the whole of its state."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import ConfigError, DataError
from gradtide.events import Emit, ignore
from gradtide.parallel.devices.losses import Loss
from gradtide.parallel.devices.step import BatchResult
from gradtide.parallel.split.chain_values import input_values, samples_of
from gradtide.parallel.split.cut.exactness import BatchNormChoice, check_exact
from gradtide.parallel.split.cut.local import LocalStage
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.parallel.split.meta import initial_tensors
from gradtide.parallel.split.run.agreeing import Agreement, Wish, digest, options_digest
from gradtide.parallel.split.run.batch import SplitBatch, weigh_parts
from gradtide.parallel.split.run.first_values import fill_first_values, is_on_meta
from gradtide.parallel.split.run.held import DeviceStage, Held
from gradtide.parallel.split.run.optimizer import LocalOptimizer, check_optimizer
from gradtide.parallel.split.run.programme import DeviceProgramme
from gradtide.parallel.split.run.rooms import Room, ValuePiece, assembled
from gradtide.parallel.split.run.setting_up import release
from gradtide.parallel.split.run.shaping import ChainShape, first_stages
from gradtide.parallel.split.run.speaking.communicator import Communicator, Packet
from gradtide.parallel.split.run.speaking.places import DevicesPlace
from gradtide.parallel.split.run.walk import DeviceSetting, Walk
from gradtide.parallel.split.run.whole import (
    Part,
    WholeNames,
    join_parts,
    load_model,
    model_parts,
    optimizer_parts,
    share_parts,
)
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.layout import Layout, Stage
from gradtide.schedule.step.model import StepPlan
from gradtide.schedule.step.proof import verify_step

__all__ = ["SplitEngine", "check_fits"]

_TAG = (1 << 40) + 1  # of what the model returns, after all tasks
_RUNS = ("gpipe", "1f1b", "interleaved")
_PLANS = 64  # of batches of different sizes


def check_fits(layout: Layout, chain: Chain, devices: int) -> None:
    """Refuses a layout of another model, or for other devices."""
    units = tuple(unit.name for unit in chain.units)
    if layout.units != units:
        other = next((name for name in layout.units if name not in units), None)
        which = f"it has {other!r}" if other else f"it has {len(layout.units)} units, and the model {len(units)}"
        raise ConfigError(f"the layout is of another model: {which}; make one with gradtide.split(model, ...)")
    if layout.devices != devices:
        raise ConfigError(
            f"the layout is for {layout.devices} devices, and there are {devices}: say devices={layout.devices}, start "
            f"with gradtide run --workers {layout.devices}, or plan for {devices}"
        )
    if layout.order not in _RUNS:
        raise ConfigError(f"{layout.order} is planned and simulated, but not run; choose one of {', '.join(_RUNS)}")


class SplitEngine:
    """Every process of the job makes one, with the same arguments."""

    def __init__(
        self,
        model: nn.Module,
        chain: Chain,
        layout: Layout,
        optimizer: torch.optim.Optimizer,
        place: DevicesPlace,
        *,
        clip_norm: float | None = None,
        seed: int = 0,
        batch_norm: BatchNormChoice = "",
        emit: Emit = ignore,
    ) -> None:
        check_fits(layout, chain, place.size)
        check_exact(chain, layout, batch_norm)
        self.chain, self.layout, self.place, self.model = chain, layout, place, model
        self._clip_norm, self._seed, self._user, self._batch_norm = clip_norm, seed, optimizer, batch_norm
        self._emit = emit
        self.names = WholeNames(model)
        self._loaded = 0  # a digest of the states that were loaded
        self._shape = ChainShape.of(chain, layout)
        self._plans: dict[int, StepPlan] = {}
        self._programmes: dict[tuple[int, int], DeviceProgramme] = {}
        held = {device: self._held(device) for device in place.here}
        for one in held.values():
            check_optimizer(optimizer, one.trained(), len(layout.stages))
        communicators = place.connect(*self._members())
        self._settings = {
            device: self._setting(device, held[device], communicator)
            for device, communicator in zip(place.here, communicators, strict=True)
        }
        self._rest = self._unheld()

    def _held(self, device: int) -> Held:
        on_meta = is_on_meta(self.model)
        where = torch.device("meta") if on_meta else self.place.torch_device(device)
        found = []
        for number, stage in enumerate(self.layout.stages):
            if device in stage.devices:
                copy, shard = divmod(stage.devices.index(device), stage.shards)
                found.append(DeviceStage(number, copy, shard, self._cut(stage, shard, where)))
        held = Held(found, first_stages(self.chain, self.layout))
        if on_meta:
            fill_first_values(held, self.model, self._seed, self.place.torch_device(device))
        return held

    def _cut(self, stage: Stage, shard: int, where: torch.device) -> LocalStage:
        return cut_stage(self.chain, stage, shard, where, share_batch_norm=self._batch_norm == "shared")

    def _members(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Who exchanges with whom, and who sums up."""
        exchanging = {tuple(range(self.place.size))}
        for stage in self.layout.stages:
            for copy in range(stage.copies):
                exchanging.add(tuple(sorted(stage.device(copy, shard) for shard in range(stage.shards))))
            if self._batch_norm == "shared":
                exchanging.update(tuple(sorted(stage.devices[shard :: stage.shards])) for shard in range(stage.shards))
        summing = {summed.devices for summed in self.plan(self.layout.micro_batches).sums}
        return [one for one in exchanging if len(one) > 1], [one for one in summing if len(one) > 1]

    def _setting(self, device: int, held: Held, communicator: Communicator) -> DeviceSetting:
        optimizer = LocalOptimizer(self._user, self.names.first, held)
        where = self.place.torch_device(device)
        for stage in held.stages:
            of_layout = self.layout.stages[stage.number]
            copies = of_layout.devices[stage.shard :: of_layout.shards]
            for norm in stage.local.shared_norms:
                norm.add_up = partial(communicator.add_up, members=copies)
        return DeviceSetting(
            device, self.chain, held, communicator, where, self._seed, optimizer, self._clip_norm, self._emit
        )

    def _unheld(self) -> dict[str, Any]:
        """Parameters and buffers that no unit has: they stay as they are."""
        held = set(first_stages(self.chain, self.layout))
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        rest = {name: tensor.detach() for name, tensor in named.items() if name not in held}
        on_meta = [name for name, tensor in rest.items() if tensor.is_meta]
        return rest | dict(initial_tensors(self.model, self._seed, on_meta)) if on_meta else rest

    def release_model(self) -> None:
        """The whole model's memory: devices hold their parts."""
        release(self.model, set(first_stages(self.chain, self.layout)))

    # --- steps ---

    def plan(self, samples: int) -> StepPlan:
        """The step of a batch of so many samples, proven."""
        if samples not in self._plans:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
                self._programmes.clear()
            plan = build_step(self._shape.step(samples, clip=self._clip_norm is not None))
            verify_step(plan)
            self._plans[samples] = plan
        return self._plans[samples]

    def _programme(self, device: int, samples: int) -> DeviceProgramme:
        key = device, samples
        if key not in self._programmes:
            stages = self._settings[device].held.stages
            self._programmes[key] = DeviceProgramme(self.plan(samples), device, self.chain, stages)
        return self._programmes[key]

    def step(self, inputs: Any, targets: Tensor, loss: Loss, number: int) -> BatchResult:
        """Takes one step; returns what it saw of the whole batch, on every device."""
        named = input_values(self.chain, self.model, inputs)
        samples = samples_of(named)
        if len(targets) != samples:
            raise ConfigError(f"a batch has {samples} inputs and {len(targets)} targets; it needs as many of each")
        self._refuse_lonely_norms(samples)
        weights, terms = weigh_parts(loss, targets, self._programme(self.place.here[0], samples).parts, samples)
        batch = SplitBatch(named, samples, self.chain.structure, number, targets, loss, weights, self.chain.rowless)
        value, correct = self.place.run(partial(self._train, batch))[0]
        return BatchResult(value, correct, samples, terms)

    def _train(self, batch: SplitBatch, device: int) -> tuple[float, int | None]:
        setting = self._settings[device]
        agreed = self._agreed(0, setting, batch)
        walk = Walk(setting, self._programme(device, batch.samples), batch, agreed, training=True)
        try:
            walk.run()
        except BaseException:
            setting.held.clear_gradients()
            raise
        return walk.seen.of_all()

    def _agreed(self, call: int, setting: DeviceSetting, batch: SplitBatch | None = None) -> Callable[[], None] | None:
        """Asks ranks whether they want the same; what comes back raises if they don't. Devices of one process do."""
        if len(self.place.here) == self.place.size:
            return None
        tensors = {} if batch is None else {**batch.inputs, "": batch.targets}
        options = options_digest(self._user.param_groups, self._clip_norm)
        steps = 0 if batch is None else batch.step
        wish = Wish(call, digest(tensors), self._loaded, options, steps, self._seed % (1 << 62))
        return Agreement(wish, setting.communicator).check

    def _refuse_lonely_norms(self, samples: int) -> None:
        """Copies that add up statistics wait for each other, so each needs a sample of each micro-batch."""
        if any(stage.local.shared_norms for one in self._settings.values() for stage in one.held.stages):
            copies = max(stage.copies for stage in self.layout.stages)
            if samples < copies * self.layout.micro_batches:
                raise DataError(
                    f"a batch of {samples} leaves one of {copies} copies without a sample, and batch_norm='shared' "
                    "needs one of each; leave such batches out (drop_last=True)"
                )

    def evaluate(self, inputs: Any, number: int) -> Any:
        """What the model returns for a batch, whole, on every device."""
        named = input_values(self.chain, self.model, inputs)
        if not samples_of(named):
            raise DataError("a batch has no sample in it; give the model's inputs with a row a sample, 1 or more")
        batch = SplitBatch(named, samples_of(named), self.chain.structure, number, rowless=self.chain.rowless)
        return self.place.run(partial(self._evaluate, batch))[0]

    def _evaluate(self, batch: SplitBatch, device: int) -> Any:
        setting, programme = self._settings[device], self._programme(device, batch.samples)
        walk = Walk(setting, programme, batch, self._agreed(1, setting, batch), training=False)
        walk.run()
        pieces = _spread(walk.outputs, programme.plan, setting.communicator)
        room, rowless = Room(0, batch.samples), self.chain.rowless
        leaves = []
        for at, name in enumerate(self.chain.outputs):
            parts = [ValuePiece(first, last, made[at]) for first, last, made in pieces]
            leaves.append(_detached(assembled(parts, room, name, rowless)))
        return batch.returned(leaves)

    def train_mode(self, training: bool) -> None:
        """As nn.Module.train. What is not exact in this mode is refused."""
        for whole in self.chain.units:
            whole.module.train(training)
        check_exact(self.chain, self.layout, self._batch_norm)
        for setting in self._settings.values():
            for stage in setting.held.stages:
                for segment in stage.local.segments:
                    for unit in segment.units:
                        unit.module.train(training)

    # --- state ---

    def _collect(self, parts_of: Callable[[DeviceSetting], list[Part]], call: int) -> dict[str, Any]:
        """Where all devices are here their threads are not asked: after a failure they don't answer."""
        if self.place.size == len(self.place.here):
            return join_parts(parts_of(one) for one in self._settings.values())
        return self.place.run(lambda device: self._share(parts_of, device, call))[0]

    def _share(self, parts_of: Callable[[DeviceSetting], list[Part]], device: int, call: int) -> dict[str, Any]:
        setting = self._settings[device]
        agreed = self._agreed(call, setting)
        if agreed is not None:
            agreed()
        return share_parts(parts_of(setting), setting.communicator)

    def state_dict(self) -> dict[str, Any]:
        """Whole, under the model's own names."""
        whole = self._collect(lambda one: model_parts(one.held), 2) | self._rest
        found = {
            key: self.names.rest[key] if key in self.names.rest else whole[self.names.keys[key]]
            for key in self.names.order
        }
        return {key: value.detach() if isinstance(value, Tensor) else value for key, value in found.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of a whole state that fits (check_state), each device takes its parts."""
        by_name = {first: state[key] for key, first in self.names.keys.items()}
        self._loaded = digest(by_name, self._loaded)
        for key in self.names.rest:
            self.names.rest[key] = state[key]
        with torch.no_grad():
            for name, tensor in self._rest.items():
                if name in by_name:
                    tensor.copy_(by_name[name])
        for one in self._settings.values():
            load_model(one.held, by_name)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Of each parameter by its name, whole."""
        found: dict[str, dict[str, Any]] = {}
        for key, value in self._collect(lambda one: optimizer_parts(one.held, one.optimizer), 3).items():
            name, of_state = json.loads(key)
            found.setdefault(name, {})[of_state] = value
        return found

    def load_optimizer_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Whole, by the parameters' names: each device takes its parts."""
        unknown = [name for name in states if name not in self.names.first.values()]
        if unknown:
            raise DataError(f"the optimizer's state is of another model: it has {unknown[0]}")
        for name in sorted(states):
            self._loaded = digest(states[name], self._loaded)
        for one in self._settings.values():
            one.optimizer.load_state(states)

    def close(self) -> None:
        self.place.close()


Output = tuple[int, int, list[Packet]]  # of samples first to last - 1, the leaves of what the model returns


def _spread(mine: Sequence[Output], plan: StepPlan, communicator: Communicator) -> list[Output]:
    """What the last stage's copies have made goes to all devices."""
    stage = plan.shape.stages[-1]
    makers = [stage.device(copy, 0) for copy in range(stage.copies)]
    found = list(mine)
    if communicator.rank in makers:
        letter: list[Packet] = [len(mine)]
        for first, last, leaves in mine:
            letter += [first, last, *leaves]
        for other in range(communicator.size):
            if other != communicator.rank:
                communicator.send(letter, other, _TAG)
    for maker in makers:
        if maker != communicator.rank:
            found += _opened(communicator.receive(maker, _TAG))
    communicator.finish()
    return found


def _opened(letter: Sequence[Packet]) -> list[Output]:
    count = letter[0]
    assert isinstance(count, int)
    size = (len(letter) - 1) // count if count else 0
    found = []
    for at in range(1, len(letter), max(size, 1)):
        first, last, *leaves = letter[at : at + size]
        assert isinstance(first, int)
        assert isinstance(last, int)
        found.append((first, last, [_kept(leaf) for leaf in leaves]))
    return found


def _kept(value: Packet) -> Packet:
    """Not in memory that others need again: who asked for it keeps it as long as it likes."""
    return value.clone() if isinstance(value, Tensor) else value


def _detached(value: Packet) -> Packet:
    return value.detach() if isinstance(value, Tensor) else value
