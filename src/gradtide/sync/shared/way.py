"""One host: parameters in shared memory, each rank reduces and updates its share in one pass.

    values       one copy of all parameters, for all ranks. Owners write to it; a rank's own parameters lie in a view of
                 it that is private: what a program changes there by itself stays with its rank, and is noticed
    inbox        a row for each other rank: what it hands over of the gradients that somebody else owns
    used         which parameters each rank has a gradient of

A rank hands over, from backward's hook, only what others own; then the ranks meet; each adds up and updates its own
share; they meet again, and the step is finished. Until then the old values are kept where the first row of the inbox
was, piece by piece, and `begun` says how far each rank is: a step that a rank did not live to finish can be undone.

Where they meet first they also say whether they can go on so. If one can't, nothing has been changed: each has the
values of the last step, with what its program made of them since, and its own gradient, and all go another way.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.events import Emit, GradientsSynchronised, LinksPlanned, Waiting
from gradtide.kernels import KERNELS
from gradtide.sync.in_group import InGroup
from gradtide.sync.job import Job
from gradtide.sync.shared.flat import FlatRun, lay_out
from gradtide.sync.shared.pieces import PIECE_ELEMENTS, Stepper, StepPiece
from gradtide.sync.shared.storages import find_storages
from gradtide.sync.state import Options, check_batches
from gradtide.sync.trained import Trained
from gradtide.sync.watching.guard import Guard, StateKeeper
from gradtide.transport.memory import PrivatePages, tensor_over

__all__ = ["ELEMENTS", "SharedParameters", "Unshare"]

_HELD = (
    "with shared parameters the optimizer's state is in memory of all workers; read it by optimizer.state_dict(), "
    "change it by load_state_dict(), or make the model with share_parameters=False"
)
ELEMENTS = {torch.float32: "float32", torch.float64: "float64"}  # and what their kernel is called
_FLOAT64, _WORD = struct.Struct("d"), struct.Struct("q")
_STEP_BITS = 24  # of `begun`: how many pieces; above them, of which step


class Unshare(IntEnum):
    """Why a rank can't go on with shared parameters."""

    VALUES = 1
    GRADIENT = 2
    BY_HAND = 3
    WHOLE = 4


_WHY = {
    Unshare.VALUES: "{} was changed outside of model.edit()",
    Unshare.GRADIENT: "the gradient of {} was looked at or changed before the step",
    Unshare.BY_HAND: "optimizer.step() was called instead of model.step()",
    Unshare.WHOLE: "model.synchronise() was called",
}


class SharedParameters(InGroup):
    """The way of ranks on one host whose optimizer is elementwise."""

    workers_step = False
    _group: Group

    def __init__(self, trained: Trained, job: Job, group: Group, reason: str, emit: Emit) -> None:
        super().__init__(trained, group)
        self.reason, self._emit, self._job, self._rank, self._ranks = reason, emit, job, group.rank, group.size
        self._flat = flat = lay_out(trained, find_storages(trained))
        self._dtype = trained.parameters[0].dtype
        size_bytes = max(1, flat.total * self._dtype.itemsize)
        memory, self._view = group.twofold_memory(size_bytes)
        self._values = tensor_over(memory, self._dtype, (flat.total,))
        self._pages, self.outdated = PrivatePages(self._view, size_bytes), False
        self._inbox = self._common(flat.total * (group.size - 1))
        self._used = group.common_tensor((group.size, len(flat.starts)), torch.uint8).numpy()
        self._begun = group.common_tensor(group.size, torch.int64).numpy()
        self._begin, self._end = flat.share(group.rank, group.size)
        self._stepper = Stepper(trained.optimizer, flat, self._values, (self._begin, self._end), self._make)
        self._gives = [self._places(index) for index in range(len(flat.starts))]
        self._given_bytes = sum(place.nbytes for places in self._gives for place, _, _ in places)
        self._given, self._options = Guard(len(flat.starts)), Options(trained)
        self._told = group.common_tensor((group.size, 4), torch.int64).numpy()  # options; why not so, where; batch
        self._asks = group.common_tensor(group.size, torch.uint8).numpy()  # to look whether all are alike
        self.asked_to_look = False
        self._scratch = torch.zeros(PIECE_ELEMENTS + 64, dtype=self._dtype)
        self._zeros = torch.zeros_like(self._scratch)
        self._kernel = KERNELS.COMBINE[ELEMENTS[self._dtype]].entry
        self._finished, self._updating = 0, False  # steps
        if trained.optimizer.state:
            self._load_state()
        self._links = LinksPlanned("shared parameters", self._loads())
        self._move_in()
        self._keeper = StateKeeper(trained.optimizer, _HELD, self.show_state, self._load_again)

    def _loads(self) -> list[list[str | int]]:
        """What is handed over to the owner of each other share."""
        loads: list[list[str | int]] = []
        for owner in range(self._ranks):
            runs = [self._flat.parts(i, *self._flat.share(owner, self._ranks)) for i in range(len(self._flat.starts))]
            elements = sum(run.end - run.begin for found in runs for run in found)
            if owner != self._rank:
                loads.append([f"worker {self._rank}", f"worker {owner}", elements * self._dtype.itemsize])
        return loads

    # --- a gradient's way ---

    def ready(self, index: int, weight: float) -> None:
        gradient = self._trained.parameters[index].grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ConfigError(
                f"{self._trained.names[index]} has a sparse gradient, which can't be shared; make the model with "
                "share_parameters=False"
            )
        flat = gradient.reshape(-1)
        for place, begin, end in self._gives[index]:
            torch.mul(flat[begin:end], weight, out=place)
        self._given.remember(index, gradient)

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        raise AssertionError("with shared parameters no rank ever has the whole gradient")

    def begin_step(self, weights: Sequence[float]) -> str:
        """Before `step`: hands over what others wait for, and returns why it can't be taken, if a rank says so."""
        self._hand_over_the_rest(weights)
        edited = self._find_edited()
        return self._meet() if edited is None else self._meet(Unshare.VALUES, edited)

    @property
    def nobody_gave(self) -> bool:
        """After `begin_step`: whether no rank has any gradient."""
        return not self._used.any()

    def step(self, weights: Sequence[float]) -> None:
        if self._links is not None:
            self._tell_links(self._emit)
        self.asked_to_look = bool(self._asks.any())
        self._emit(GradientsSynchronised(self._given_bytes))
        used = [bool(by_anybody) for by_anybody in np.bitwise_or.reduce(self._used)]
        self._updating = True
        self._stepper.prepare(used)
        self._update(used, weights)
        self._emit(Waiting())
        self._group.barrier()
        self._finished, self._updating = self._finished + 1, False
        self._asks[self._rank] = 0
        for parameter in self._trained.parameters:
            parameter.grad = None
        self._given.next_look()

    def leave(self, why: Unshare, index: int = 0) -> str:
        """Instead of `begin_step`: meets the others where they begin theirs, and returns why all go another way."""
        return self._meet(why, index)

    def _meet(self, why: int = 0, index: int = 0) -> str:
        told = self._told
        told[self._rank] = int.from_bytes(self._options.digest(), "little", signed=True), why, index, self._job.batches
        self._emit(Waiting())
        self._group.barrier()
        if why or (told != told[0]).any():
            check_batches(told[:, 3].tolist())
            reason, at = next(((reason, at) for _, reason, at, _ in told.tolist() if reason), (0, 0))
            if reason:
                return _WHY[Unshare(reason)].format(self._trained.names[at])
            self._options.take(self._group)
        return ""

    def check_step(self) -> None:
        """No optimizer of the user's steps."""

    def _is_elsewhere(self, index: int) -> bool:
        """Whether the program has put a tensor of its own in place of a shared one."""
        return self._trained.parameters[index].data_ptr() != self._pointers[index]

    def _find_edited(self) -> int | None:
        """A parameter that the program has changed on this rank."""
        indices = range(len(self._pointers))
        elsewhere = next((index for index in indices if self._is_elsewhere(index)), None)
        if elsewhere is not None or not self._pages.any():
            return elsewhere
        parameters = self._trained.parameters
        return next((index for index in indices if not torch.equal(parameters[index], self._place(index))), 0)

    @contextmanager
    def edit(self) -> Iterator[None]:
        """What rank 0 makes of its view is shared; what the others do in here is forgotten."""
        shared = set(map(id, self._trained.parameters))  # what is frozen in here is shared still
        yield
        if int(self.add_up(torch.tensor([int(any(map(self._is_elsewhere, range(len(self._pointers)))))]))):
            self.share_parameters()
            self.outdated = True
            return
        for _, parameter in self._trained.everything:
            if id(parameter) not in shared:
                self._group.broadcast(parameter.data)
        if self._rank == 0 and self._pages.any():
            self._values.copy_(tensor_over(self._view, self._dtype, (self._flat.total,)))
        self._group.barrier()
        self._pages.forget()

    def forget_edits(self) -> None:
        """What the program has changed on this rank alone."""
        self._pages.forget()

    def _hand_over_the_rest(self, weights: Sequence[float]) -> None:
        mine = self._used[self._rank]
        for index, parameter in enumerate(self._trained.parameters):
            gradient = parameter.grad
            mine[index] = gradient is not None
            if gradient is None:
                for place, _, _ in self._gives[index]:
                    place.zero_()
            elif not self._given.knows(index):
                self.ready(index, weights[index])
            elif self._given.is_changed(index, gradient):
                raise ConfigError(
                    f"the gradient of {self._trained.names[index]} was changed between backward and step, where it is "
                    "this worker's alone; make the model with share_parameters=False, or say clip_norm="
                )

    def _update(self, used: list[bool], weights: Sequence[float]) -> None:
        for number, piece in enumerate(self._stepper.pieces):
            if self._stepper.apart and not used[piece.parts[0].index]:
                continue
            length = piece.end - piece.begin
            self._combine(piece, weights)
            self._stepper.keep(piece)
            self._begun[self._rank] = (self._finished << _STEP_BITS) + number + 1
            self._stepper.step(piece, self._scratch[:length])

    def _combine(self, piece: StepPiece, weights: Sequence[float]) -> None:
        inbox, row, values = self._inbox.data_ptr(), self._flat.total, self._values.data_ptr()
        rank, ranks, item = self._rank, self._ranks, self._dtype.itemsize
        if piece.has_gaps:
            self._scratch[: piece.end - piece.begin] = 0
        for part in piece.parts:
            own = self._own(part)  # held until the call is over: it may be a copy
            (weight,) = _WORD.unpack(_FLOAT64.pack(weights[part.index]))
            out = self._scratch.data_ptr() + (part.begin - piece.begin) * item
            count = part.end - part.begin
            self._kernel(own.data_ptr(), inbox, row, values, part.begin, rank, ranks, weight, count, out)

    def _own(self, part: FlatRun) -> Tensor:
        gradient = self._trained.parameters[part.index].grad
        if gradient is None:
            return self._zeros[: part.end - part.begin]
        # As it reads: the imaginary part of a conjugate lies in memory as its negative.
        return gradient.resolve_neg().reshape(-1)[part.offset : part.offset + part.end - part.begin]

    # --- where things lie ---

    def _common(self, elements: int) -> Tensor:
        return self._group.common_tensor(elements, self._dtype)

    def _make(self) -> Tensor:
        return self._common(self._flat.total)

    def _move_in(self) -> None:
        """Every rank's parameters become views of the shared ones, which begin as rank 0's. After this no rank waits
        for another: either all of them have moved, or none."""
        for index, parameter in enumerate(self._trained.parameters):
            if self._rank == 0:
                self._place(index).copy_(parameter.detach())
        self._group.barrier()
        for start, storage in self._flat.storages:
            storage.move(tensor_over(self._view, self._dtype, (storage.count,), start * self._dtype.itemsize))
        self._pointers = [parameter.data_ptr() for parameter in self._trained.parameters]

    def _place(self, index: int) -> Tensor:
        start, parameter = self._flat.starts[index], self._trained.parameters[index]
        return self._values[start : start + parameter.numel()].view(parameter.shape)

    def _places(self, index: int) -> list[tuple[Tensor, int, int]]:
        """Where this rank hands over what of a parameter: (place, begin, end), for what each other rank owns."""
        places = []
        for owner in range(self._ranks):
            if owner == self._rank:
                continue
            row = (self._rank if self._rank < owner else self._rank - 1) * self._flat.total
            for part in self._flat.parts(index, *self._flat.share(owner, self._ranks)):
                count = part.end - part.begin
                places.append((self._inbox[row + part.begin : row + part.end], part.offset, part.offset + count))
        return places

    def ask_to_look(self) -> None:
        self._asks[self._rank] = 1

    def has_in_common(self, tensor: Tensor) -> bool:
        begin = tensor_over(self._view, self._dtype, (self._flat.total,)).data_ptr()
        return begin <= tensor.data_ptr() < begin + self._values.nbytes

    # --- the user's optimizer ---

    def show_state(self) -> None:
        """Lets the user's optimizer see the state: views of what all ranks see."""
        for index, parameter in enumerate(self._trained.parameters):
            begin = self._flat.starts[index]
            state = self._stepper.state_of(index, begin, begin + parameter.numel())
            if state:
                self._trained.optimizer.state[parameter] = {
                    name: value.view(parameter.shape) if _is_flat(value) else value for name, value in state.items()
                }

    def _load_again(self) -> None:
        """Not in a newcomer that goes over what all others have done long before."""
        if self._job.arrived:
            self._load_state()

    def _load_state(self) -> None:
        """After optimizer.load_state_dict, which all ranks call."""

        def state_of(index: int) -> dict[str, Any]:
            parameter = self._trained.parameters[index]
            state = self._trained.optimizer.state.get(parameter, {})
            return {
                name: value.reshape(-1)
                if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step"
                else value
                for name, value in state.items()
            }

        self._group.barrier()
        self._stepper.load(state_of)
        self._group.barrier()

    def close(self) -> None:
        self._keeper.give_back()
        values = self._values.clone() if self._updating else None
        states = {name: state.now.clone() for name, state in self._stepper.states.items()}
        if values is not None:
            self._take_back(values, states)
        for start, storage in self._flat.storages:
            storage.move_home(None if values is None else values[start : start + storage.count])
        self.show_state()
        optimizer = self._trained.optimizer
        for index, parameter in enumerate(self._trained.parameters):
            begin = self._flat.starts[index]
            mine = slice(begin, begin + parameter.numel())
            shown = optimizer.state.pop(parameter, {})
            if shown:
                optimizer.state[parameter] = {
                    name: states[name][mine].view(parameter.shape) if name in states else value
                    for name, value in shown.items()
                }

    def _take_back(self, values: Tensor, states: dict[str, Tensor]) -> None:
        """What any rank has begun of a step that was not finished. All who live have stopped by now."""
        self._stepper.undo()
        used = np.bitwise_or.reduce(self._used)
        for rank in range(self._ranks):
            step, begun = divmod(int(self._begun[rank]), 1 << _STEP_BITS)
            if step != self._finished:
                continue
            pieces = self._flat.pieces(*self._flat.share(rank, self._ranks), PIECE_ELEMENTS, apart=self._stepper.apart)
            for _, parts in pieces[:begun]:
                for part in parts if used[parts[0].index] or not self._stepper.apart else ():
                    values[part.begin : part.end] = self._inbox[part.begin : part.end]
                    for name, state in self._stepper.states.items():
                        states[name][part.begin : part.end] = state.kept[part.begin : part.end]


def _is_flat(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1
