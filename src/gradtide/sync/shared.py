"""One host: parameters in shared memory, each rank reduces and updates its share in one pass.

    values       one copy of all parameters, for all ranks
    inbox        a row for each other rank: what it hands over of the gradients that somebody else owns
    used         which parameters each rank has a gradient of

A rank hands over, from backward's hook, only what others own; then the ranks meet; each adds up and updates its own
share; they meet again, and the step is finished. Until then the old values are kept where the first row of the inbox
was, piece by piece, and `begun` says how far each rank is: a step that a rank did not live to finish can be undone.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.events import Emit, GradientsSynchronised, Waiting
from gradtide.sync.combine import combine_for
from gradtide.sync.flat import Part, lay_out
from gradtide.sync.pieces import PIECE_ELEMENTS, Piece, Stepper
from gradtide.sync.ways import Trained

__all__ = ["SharedParameters"]

_STEP_BITS = 24  # of `begun`: how many pieces; above them, of which step


class SharedParameters:
    """The way of ranks on one host whose optimizer is elementwise."""

    def __init__(self, trained: Trained, group: Group, reason: str, emit: Emit) -> None:
        self.reason, self._emit = reason, emit
        self._trained, self._group, self._rank, self._ranks = trained, group, group.rank, group.size
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
        self._handed = [-1] * len(flat.starts)  # the version of each gradient when it was handed over
        self._scratch = torch.zeros(PIECE_ELEMENTS + 64, dtype=self._dtype)
        self._zeros = np.zeros(PIECE_ELEMENTS + 64, self._scratch.numpy().dtype)
        self._kernel = combine_for(self._dtype)
        self._arrays = self._values.numpy(), self._inbox.numpy(), self._scratch.numpy()
        self._finished, self._updating = 0, False  # steps
        if trained.optimizer.state:
            self._load_state()
        self._hooks = self._watch_optimizer()

    # --- a gradient's way ---

    def ready(self, index: int, weight: float) -> None:
        gradient = self._trained.parameters[index].grad
        assert gradient is not None
        flat = gradient.reshape(-1)
        for place, begin, end in self._gives[index]:
            torch.mul(flat[begin:end], weight, out=place)
        self._handed[index] = gradient._version

    def synchronise(self, weight: float) -> None:
        raise ConfigError(
            "with shared parameters no rank ever has the whole gradient; to change it before the step, make the model "
            "with share_parameters=False, or say clip_norm="
        )

    def step(self, weight: float) -> None:
        self._hand_over_the_rest(weight)
        self._emit(Waiting())
        self._group.barrier()
        self._emit(GradientsSynchronised(self._given_bytes))
        used = [bool(by_anybody) for by_anybody in np.bitwise_or.reduce(self._used)]
        self._updating = True
        self._stepper.prepare(used)
        self._update(used, weight)
        self._emit(Waiting())
        self._group.barrier()
        self._finished, self._updating = self._finished + 1, False
        for index, parameter in enumerate(self._trained.parameters):
            parameter.grad = None
            self._handed[index] = -1

    def _hand_over_the_rest(self, weight: float) -> None:
        mine = self._used[self._rank]
        for index, parameter in enumerate(self._trained.parameters):
            gradient = parameter.grad
            mine[index] = gradient is not None
            if gradient is None:
                for place, _, _ in self._gives[index]:
                    place.zero_()
            elif self._handed[index] == -1:
                self.ready(index, weight)
            elif self._handed[index] != gradient._version:
                raise ConfigError(
                    f"the gradient of {self._trained.names[index]} was changed between backward and step, where it is "
                    "this worker's alone; make the model with share_parameters=False and call synchronise() first, or "
                    "say clip_norm="
                )

    def _update(self, used: list[bool], weight: float) -> None:
        for number, piece in enumerate(self._stepper.pieces):
            if self._stepper.apart and not used[piece.parts[0].index]:
                continue
            length = piece.end - piece.begin
            self._combine(piece, weight)
            self._stepper.keep(piece)
            self._begun[self._rank] = (self._finished << _STEP_BITS) + number + 1
            self._stepper.step(piece, self._scratch[:length])

    def _combine(self, piece: Piece, weight: float) -> None:
        values, inbox, scratch = self._arrays
        if piece.has_gaps:
            scratch[: piece.end - piece.begin] = 0
        for part in piece.parts:
            count = part.end - part.begin
            out = scratch[part.begin - piece.begin : part.end - piece.begin]
            self._kernel(
                self._own(part, count),
                inbox,
                self._flat.total,
                values,
                part.begin,
                self._rank,
                self._ranks,
                weight,
                out,
            )

    def _own(self, part: Part, count: int) -> Any:
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
            start = self._flat.starts[index]
            place = self._values[start : start + parameter.numel()].view(parameter.shape)
            if self._rank == 0:
                place.copy_(parameter.detach())
            parameter.data = place
        self._group.barrier()

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

    # --- the user's optimizer ---

    def _watch_optimizer(self) -> list[Any]:
        optimizer = self._trained.optimizer
        return [
            optimizer.register_step_pre_hook(_not_here),
            optimizer.register_state_dict_pre_hook(lambda _: self.show_state()),
            optimizer.register_load_state_dict_post_hook(lambda _: self._load_state()),
        ]

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
        for hook in self._hooks:
            hook.remove()
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


def _not_here(optimizer: Any, arguments: Any, options: Any) -> None:
    raise ConfigError("call model.step() instead of optimizer.step(): it synchronises the gradients first")
