"""One device takes its tasks of a step, in their order: computes, sends, exchanges, sums and updates."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.events import Emit, ignore
from gradtide.parallel.devices.step import count_correct
from gradtide.parallel.split.run.batch import SeenLoss, SplitBatch
from gradtide.parallel.split.run.held import DeviceStage, GradientSums, Held, clip_factor, scale_gradients
from gradtide.parallel.split.run.optimizer import LocalOptimizer
from gradtide.parallel.split.run.programme import DeviceProgramme, exchanges_of
from gradtide.parallel.split.run.rooms import Room, ValuePiece, assembled, rows_of
from gradtide.parallel.split.run.segments import evaluate, record
from gradtide.parallel.split.run.shard_talk import exchange_back, exchange_there
from gradtide.parallel.split.run.speaking.communicator import Communicator, Packet
from gradtide.parallel.split.run.watching import watch_tasks
from gradtide.parallel.split.units import Chain
from gradtide.schedule.step.model import Task

__all__ = ["DeviceSetting", "Walk"]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSetting:
    """What one device has for all steps."""

    device: int
    chain: Chain
    held: Held
    communicator: Communicator
    torch_device: torch.device
    seed: int  # of dropout's masks
    optimizer: LocalOptimizer
    clip_norm: float | None = None
    emit: Emit = ignore


class Walk:
    """One step of one device. What it holds goes with it."""

    def __init__(
        self,
        setting: DeviceSetting,
        programme: DeviceProgramme,
        batch: SplitBatch,
        agreed: Callable[[], None] | None = None,
        *,
        training: bool,
    ) -> None:
        """agreed: raises where devices want different things. It is asked before this one waits for another, and before
        it changes anything; what it can compute alone comes first."""
        self._here, self._programme, self._batch, self._training = setting, programme, batch, training
        self._plan, self._stages = programme.plan, programme.by_number
        self._rooms: dict[tuple[int, int], Room] = {}
        self._left = Counter(programme.leaves)  # what has not left yet
        self._coming: dict[tuple[bool, int, int], list[Task]] = defaultdict(
            list
        )  # messages, by (back, crossing, micro)
        self._sums = GradientSums(setting.held, self._plan, setting.communicator)
        self._agreed = agreed
        self.seen = SeenLoss(setting.communicator, programme.seers, programme.seen_here)
        self.outputs: list[tuple[int, int, list[Packet]]] = []  # of the last stage: (first, last, leaves)

    def run(self) -> None:
        tasks = self._programme.tasks if self._training else self._programme.forward_tasks
        if self._here.emit is not ignore:
            watch_tasks(self._here, tasks, self._take)
        else:
            for task in tasks:
                self._take(task)
        if self._agreed is not None:
            self._agreed()
        if not self._training:
            self._collect_outputs()
        self._here.communicator.finish()

    def _take(self, task: Task) -> None:
        if self._agreed is not None and not self._is_alone(task):
            self._agreed()
            self._agreed = None
        getattr(self, f"_{task.kind}")(task)

    def _is_alone(self, task: Task) -> bool:
        if task.kind == "forward":
            return task.stage in self._programme.alone
        return task.kind == "message" and task.devices[0] == self._here.device and not task.back

    # --- computing ---

    def _forward(self, task: Task) -> None:
        room, stage = self._room(task.stage, task.micro), self._stages[task.stage]
        segment = stage.local.segments[task.segment]
        self._settle(room, stage, task.segment, back=False)
        stage.local.place.at(self._batch.step, room.first, room.last - room.first, self._here.seed)
        if not self._training:
            room.values |= evaluate(segment, room.values)
        else:
            recompute = self._plan.shape.stages[task.stage].recompute
            room.recordings[task.segment], made = record(segment, room.values, recompute=recompute)
            room.values |= made
        room.keep(self._programme.wanted_after[task.stage, task.segment])

    def _backward(self, task: Task) -> None:
        room, stage = self._room(task.stage, task.micro), self._stages[task.stage]
        self._begin_back(room, task.stage, task.micro)
        self._settle(room, stage, task.segment + 1, back=True)
        recording = room.recordings.pop(task.segment)
        taken = {name: room.take_gradient(name) for name in recording.segment.writes}
        gradients = {name: gradient for name, gradient in taken.items() if gradient is not None}
        del taken
        stage.local.place.at(self._batch.step, room.first, room.last - room.first, self._here.seed)
        for name, gradient in recording.backward(gradients).items():
            room.add(name, gradient)
        if task.segment == 0 and not self._left[True, task.stage, task.micro]:
            self._close(task.stage, task.micro)

    def _close(self, stage: int, micro: int) -> None:
        """Nobody needs anything of it any more."""
        if not any(exchange.has_gradient for exchange in exchanges_of(self._stages[stage], 0)):
            del self._rooms[stage, micro]

    # --- values and gradients that come from elsewhere ---

    def _room(self, stage: int, micro: int) -> Room:
        """It begins with what the stage reads of others."""
        room = self._rooms.get((stage, micro))
        if room is None:
            room = self._rooms[stage, micro] = Room(*self._programme.share(stage, micro))
            for name in self._programme.inputs[stage]:
                room.values[name] = self._own(self._batch.rows(name, room.first, room.last))
            pieces: dict[str, list[ValuePiece]] = defaultdict(list)
            rowless = self._here.chain.rowless
            for number in self._programme.into[stage]:
                self._gather_pieces(pieces, number, micro, back=False)
            room.values |= {name: self._own(assembled(parts, room, name, rowless)) for name, parts in pieces.items()}
        return room

    def _begin_back(self, room: Room, stage: int, micro: int) -> None:
        """With the gradients of what others read, the latest of them first; at the end of the model, with the loss."""
        if room.begun_back:
            return
        room.begun_back = True
        if stage == self._programme.last_stage:
            self._begin_with_loss(room, self._stages[stage])
        room.values.clear()
        for number in self._programme.back_into[stage]:
            pieces: dict[str, list[ValuePiece]] = defaultdict(list)
            self._gather_pieces(pieces, number, micro, back=True)
            for name, parts in pieces.items():
                gradient = self._own(assembled(parts, room, name, self._here.chain.rowless))
                room.add(name, gradient if isinstance(gradient, Tensor) else None)

    def _gather_pieces(self, pieces: dict[str, list[ValuePiece]], number: int, micro: int, *, back: bool) -> None:
        """Of a crossing's values (back: of their gradients): those that came as messages, and those that are here."""
        names = self._plan.shape.crossings[number].values
        for task in self._coming.pop((back, number, micro), []):
            values = self._here.communicator.receive(task.devices[0], task.id)
            for name, value in zip(names, values, strict=True):
                pieces[name].append(ValuePiece(task.first, task.last, value))
        for _, _, first, last in self._programme.staying(back, number, micro):
            for name, value in zip(names, self._leave(number, micro, first, last, back=back), strict=True):
                pieces[name].append(ValuePiece(first, last, value))

    def _leave(self, number: int, micro: int, first: int, last: int, *, back: bool) -> list[Packet]:
        """What goes to another stage, for some samples. What nobody waits for any more is forgotten."""
        crossing = self._plan.shape.crossings[number]
        stage = crossing.target if back else crossing.source
        room = self._rooms[stage, micro]
        if back:
            self._settle(room, self._stages[stage], 0, back=True)
        found = [(name, room.gradient(name) if back else room.values[name]) for name in crossing.values]
        leaving = [rows_of(value, room, first, last, name, self._here.chain.rowless) for name, value in found]
        self._left[back, stage, micro] -= 1
        if not self._left[back, stage, micro]:
            if back or not self._training:
                del self._rooms[stage, micro]
            elif stage != self._programme.last_stage:
                room.values.clear()
        return leaving

    def _message(self, task: Task) -> None:
        source, target = task.devices
        if source == self._here.device:
            values = self._leave(task.number, task.micro, task.first, task.last, back=task.back)
            self._here.communicator.send(values, target, task.id)
        else:  # it is awaited when it is needed
            self._coming[task.back, task.number, task.micro].append(task)

    def _own(self, value: Packet) -> Packet:
        if isinstance(value, Tensor) and value.device != self._here.torch_device:
            return value.detach().to(self._here.torch_device).requires_grad_(value.requires_grad)
        return value

    # --- the loss, and what the model returns ---

    def _begin_with_loss(self, room: Room, stage: DeviceStage) -> None:
        batch, outputs = self._batch, self._here.chain.outputs
        assert batch.targets is not None
        assert batch.loss is not None
        assert batch.weights is not None
        weight = batch.weights[room.first, room.last]
        if weight == 0:  # a mean over nothing is not a number; it counts nothing, whatever it is
            self._see(stage, 0.0, self._output(room, outputs[0]), batch.targets[room.first : room.last])
            return
        leaves = {name: _leaf(self._output(room, name)) for name in outputs}
        targets = batch.targets[room.first : room.last].to(self._here.torch_device)
        with torch.enable_grad():
            value = batch.loss(batch.returned([leaves[name] for name in outputs]), targets) * weight
        if value.requires_grad:
            value.backward()
        elif any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves.values()):
            raise ConfigError("the loss has no gradient: leave out torch.no_grad(), .item() and .detach() in it")
        for name, leaf in leaves.items():
            room.add(name, leaf.grad if isinstance(leaf, Tensor) else None)
        self._see(stage, value.item(), leaves[outputs[0]] if batch.structure is None else None, targets)

    def _see(self, stage: DeviceStage, loss: float, outputs: Packet, targets: Tensor) -> None:
        if stage.shard == 0:
            self.seen.add(loss, count_correct(outputs.detach(), targets) if isinstance(outputs, Tensor) else None)

    def _output(self, room: Room, name: str) -> Packet:
        constants: Mapping[str, Packet] = self._here.chain.constants
        return constants[name] if name in constants else room.values[name]

    def _collect_outputs(self) -> None:
        last, names = self._programme.last_stage, self._here.chain.outputs
        for (stage, _), room in sorted(self._rooms.items(), key=lambda item: item[0]):
            if stage == last and self._stages[stage].shard == 0:
                self.outputs.append((room.first, room.last, [self._output(room, name) for name in names]))

    # --- shards ---

    def _exchange(self, task: Task) -> None:
        room, stage = self._room(task.stage, task.micro), self._stages[task.stage]
        if task.back:
            self._begin_back(room, task.stage, task.micro)
        self._settle(room, stage, task.segment, back=task.back, until=task.number)
        self._exchange_one(room, stage, task.segment, task.number, back=task.back)

    def _settle(self, room: Room, stage: DeviceStage, segment: int, *, back: bool, until: int | None = None) -> None:
        """Does the exchanges before a segment (their number: after the last) that nothing is sent for, and are no
        tasks: all of them, or those that come before one of them."""
        count = len(exchanges_of(stage, segment))
        for number in range(count - 1, -1, -1) if back else range(count):
            if number == until:
                return
            if (segment, number, back) not in room.exchanged:
                self._exchange_one(room, stage, segment, number, back=back)

    def _exchange_one(self, room: Room, stage: DeviceStage, segment: int, number: int, *, back: bool) -> None:
        room.exchanged.add((segment, number, back))
        exchange = exchanges_of(stage, segment)[number]
        shape = self._plan.shape.stages[stage.number]
        devices = [shape.device(stage.copy, shard) for shard in range(shape.shards)]
        if not back:
            value = room.values[exchange.value]
            assert isinstance(value, Tensor), f"{exchange.value} is cut into shards, but is no tensor"
            found = exchange_there(exchange, value.detach(), stage.shard, devices, self._here.communicator)
            room.values[exchange.gives] = found.detach().requires_grad_(value.requires_grad)
            return
        gradient = room.take_gradient(exchange.gives)
        if gradient is not None and exchange.has_gradient:
            room.add(exchange.value, exchange_back(exchange, gradient, stage.shard, devices, self._here.communicator))

    # --- after backward ---

    def _sum(self, task: Task) -> None:
        self._sums.begin(task.number, task.id > self._programme.last_work)

    def _norm(self, task: Task) -> None:
        self._sums.finish()
        assert self._here.clip_norm is not None
        factor = clip_factor(self._here.held, self._here.clip_norm, task.devices, self._here.communicator)
        scale_gradients(self._here.held, factor)

    def _update(self, task: Task) -> None:
        self._sums.finish()
        self._here.optimizer.step()
        for holding in self._here.held.trained():
            holding.follow()
        self._here.held.clear_gradients()


def _leaf(value: Packet) -> Packet:
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value
