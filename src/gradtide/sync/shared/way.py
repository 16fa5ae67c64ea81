"""One host: parameters in shared memory, each rank reduces and updates its share in one pass.

    values       one copy of all parameters, for all ranks
    inbox        a row for each other rank: what it hands over of the gradients that somebody else owns
    used         which parameters each rank has a gradient of

A rank hands over, from backward's hook, only what others own; then the ranks meet; each adds up and updates its own
share; they meet again, and the step is finished. Until then the old values are kept where the first row of the inbox
was, piece by piece, and `begun` says how far each rank is: a step that a rank did not live to finish can be undone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.events import Emit, GradientsSynchronised, LinksPlanned, Waiting
from gradtide.kernels.combine import combine_for
from gradtide.sync.in_group import InGroup
from gradtide.sync.shared.flat import FlatRun, lay_out
from gradtide.sync.shared.pieces import PIECE_ELEMENTS, Stepper, StepPiece
from gradtide.sync.state import DIGEST_BYTES, Options
from gradtide.sync.trained import Trained
from gradtide.sync.watching.guard import Guard, StateKeeper

__all__ = ["SharedParameters"]

_HELD = (
    "with shared parameters the optimizer's state is in memory of all workers; read it by optimizer.state_dict(), "
    "change it by load_state_dict(), or make the model with share_parameters=False"
)
_STEP_BITS = 24  # of `begun`: how many pieces; above them, of which step


class SharedParameters(InGroup):
    """The way of ranks on one host whose optimizer is elementwise."""

    workers_step = False
    _group: Group

    def __init__(self, trained: Trained, group: Group, reason: str, emit: Emit) -> None:
        super().__init__(trained, group)
        self.reason, self._emit, self._rank, self._ranks = reason, emit, group.rank, group.size
        self._flat = flat = lay_out(trained)
        self._dtype = trained.parameters[0].dtype
        self._values, self._inbox = self._common(flat.total), self._common(flat.total * (group.size - 1))
        self._used = group.common_tensor((group.size, len(flat.starts)), torch.uint8).numpy()
        self._begun = group.common_tensor(group.size, torch.int64).numpy()
        self._move_in()
        self._begin, self._end = flat.share(group.rank, group.size)
        self._stepper = Stepper(trained.optimizer, flat, self._values, (self._begin, self._end), self._make)
        self._gives = [self._places(index) for index in range(len(flat.starts))]
        self._given_bytes = sum(place.nbytes for places in self._gives for place, _, _ in places)
        self._given, self._values_seen = Guard(len(flat.starts)), Guard(len(flat.starts))
        self._options = Options(trained)
        self._digests = group.common_tensor((group.size, DIGEST_BYTES), torch.uint8)
        self._asks = group.common_tensor(group.size, torch.uint8).numpy()  # to look whether all are alike
        self.asked_to_look = False
        self._scratch = torch.zeros(PIECE_ELEMENTS + 64, dtype=self._dtype)
        self._zeros = np.zeros(PIECE_ELEMENTS + 64, self._scratch.numpy().dtype)
        self._kernel = combine_for(self._dtype)
        self._arrays = self._values.numpy(), self._inbox.numpy(), self._scratch.numpy()
        self._finished, self._updating = 0, False  # steps
        if trained.optimizer.state:
            self._load_state()
        self._keeper = StateKeeper(trained.optimizer, _HELD, self.show_state, self._load_state)
        self._values_seen.remember_all(trained.parameters)
        self._links = LinksPlanned("shared parameters", self._loads())

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
        raise ConfigError(
            "with shared parameters no rank ever has the whole gradient; to change it before the step, make the model "
            "with share_parameters=False, or say clip_norm="
        )

    def step(self, weights: Sequence[float]) -> None:
        self._check_values()
        self._hand_over_the_rest(weights)
        self._digests[self._rank] = torch.frombuffer(bytearray(self._options.digest()), dtype=torch.uint8)
        self._emit(Waiting())
        self._group.barrier()
        if (self._digests != self._digests[0]).any():
            self._options.take(self._group)
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
        self._values_seen.remember_all(self._trained.parameters)

    def check_step(self) -> None:
        """No optimizer of the user's steps."""

    def finish(self) -> None:
        """The last step's values must be as it left them, too."""
        self._check_values()

    def _check_values(self) -> None:
        edited = self._values_seen.changed(self._trained.parameters)
        if edited is None:
            pairs = zip(self._trained.parameters, self._pointers, strict=True)
            edited = next((index for index, (p, pointer) in enumerate(pairs) if p.data_ptr() != pointer), None)
        if edited is not None:
            raise ConfigError(
                f"{self._trained.names[edited]} was changed outside of model.edit(), though all workers of this host "
                "share it; put the change into `with model.edit():`, or make the model with share_parameters=False (in "
                "Lightning: GradtideStrategy(share_parameters=False))"
            )

    @contextmanager
    def edit(self) -> Iterator[None]:
        """Rank 0 changes the shared parameters; what the others do in here is done to copies, and forgotten."""
        self._check_values()
        self._group.barrier()
        if self._rank:
            for parameter in self._trained.parameters:
                parameter.data = parameter.data.clone()
        try:
            yield
        finally:
            if self._rank:
                self._attach()
        self._check_places()
        self._group.barrier()
        for _, parameter in self._trained.everything:
            if not parameter.requires_grad:
                self._group.broadcast(parameter.data)
        self._values_seen.remember_all(self._trained.parameters)

    def take_in(self, indices: Sequence[int]) -> None:
        """Somebody has set these to something else, alike on all ranks, and may do so."""
        if not indices:
            return
        self._group.barrier()
        for index in indices:
            parameter, place = self._trained.parameters[index], self._place(index)
            if parameter.data_ptr() != place.data_ptr():
                if self._rank == 0:
                    place.copy_(parameter.detach())
                parameter.data = place
        self._group.barrier()
        for index in indices:
            self._values_seen.remember(index, self._trained.parameters[index])

    def _check_places(self) -> None:
        """An edit that put another tensor in place of a shared one is written to where all see it."""
        for index, parameter in enumerate(self._trained.parameters):
            place = self._place(index)
            if parameter.data_ptr() != place.data_ptr():
                place.copy_(parameter.detach())
                parameter.data = place

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
        values, inbox, scratch = self._arrays
        if piece.has_gaps:
            scratch[: piece.end - piece.begin] = 0
        for part in piece.parts:
            count = part.end - part.begin
            out = scratch[part.begin - piece.begin : part.end - piece.begin]
            own, row, weight = self._own(part, count), self._flat.total, weights[part.index]
            self._kernel(own, inbox, row, values, part.begin, self._rank, self._ranks, weight, out)

    def _own(self, part: FlatRun, count: int) -> Any:
        gradient = self._trained.parameters[part.index].grad
        if gradient is None:
            return self._zeros[:count]
        return gradient.reshape(-1).numpy()[part.offset : part.offset + count]

    # --- where things lie ---

    def _common(self, elements: int) -> Tensor:
        return self._group.common_tensor(elements, self._dtype)

    def _make(self) -> Tensor:
        return self._common(self._flat.total)

    def _move_in(self) -> None:
        """Every rank's parameters become views of the shared ones, which begin as rank 0's."""
        for index, parameter in enumerate(self._trained.parameters):
            if self._rank == 0:
                self._place(index).copy_(parameter.detach())
        self._attach()
        self._pointers = [parameter.data_ptr() for parameter in self._trained.parameters]
        self._group.barrier()

    def _place(self, index: int) -> Tensor:
        start, parameter = self._flat.starts[index], self._trained.parameters[index]
        return self._values[start : start + parameter.numel()].view(parameter.shape)

    def _attach(self) -> None:
        for index, parameter in enumerate(self._trained.parameters):
            parameter.data = self._place(index)

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
        begin = self._values.data_ptr()
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
        values = self._values.clone()
        states = {name: state.now.clone() for name, state in self._stepper.states.items()}
        if self._updating:
            self._take_back(values, states)
        self.show_state()
        optimizer = self._trained.optimizer
        for index, parameter in enumerate(self._trained.parameters):
            begin = self._flat.starts[index]
            mine = slice(begin, begin + parameter.numel())
            parameter.data = values[mine].view(parameter.shape)
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
