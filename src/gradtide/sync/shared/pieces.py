"""An optimizer that steps a rank's share of the flat space, a cache-sized piece at a time.

It is the user's own optimizer class, over pieces of the flat space instead of over parameters: for an elementwise
optimizer that is the same. Its options follow the user's optimizer, group by group, at every step.

State that has an element a parameter's element lies in memory that all ranks see, so that any of them can save it, or
go on when its owner is gone. The rest (the number of steps, say) every rank learns from *witnesses*: parameters of two
elements that take the same steps with a gradient of nought.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.sync.shared.flat import Flat, FlatRun

__all__ = ["State", "StepPiece", "Stepper", "copied"]

# With what belongs to it, a piece stays in the last-level cache; smaller ones cost more calls (measured: 2^16 to 2^18).
PIECE_ELEMENTS = 1 << 18
_WITNESS_ELEMENTS = 2

Make = Callable[[], Tensor]  # zeroes for the whole flat space, in memory that all ranks see


@dataclass(frozen=True, slots=True)
class State:
    """One name of the optimizer's state, for the whole flat space."""

    now: Tensor
    kept: Tensor  # of the last finished step, where an owner has begun the next one


@dataclass(frozen=True, slots=True)
class StepPiece:
    """A run of the flat space that is stepped at once."""

    group: int
    parts: Sequence[FlatRun]
    values: nn.Parameter
    begin: int
    end: int
    has_gaps: bool


class Stepper:
    """Steps pieces as the user's optimizer would step the parameters that they are parts of."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: Flat, values: Tensor, share: tuple[int, int], make: Make
    ) -> None:
        self._optimizer, self._flat, self._values, self._share, self._make = optimizer, flat, values, share, make
        self.states: dict[str, State] = {}
        self.apart = False  # whether each parameter is stepped by itself, because one was without a gradient once
        self._witnesses = [nn.Parameter(values.new_zeros(_WITNESS_ELEMENTS)) for _ in optimizer.param_groups]
        self._watch = _like(optimizer, self._witnesses, range(len(self._witnesses)))
        self._before: list[dict[str, Any]] = []
        self._stateless_with: list[dict[str, Any]] | None = None  # options with which a step leaves no state
        self._build()

    # --- one step ---

    def prepare(self, used: Sequence[bool]) -> None:
        """Takes over what changed in the groups, and makes room for the state that this step will need."""
        if not self.apart and not all(used):
            self._part()
        for optimizer in (self._watch, self._inner):
            _follow(optimizer, self._optimizer)
        options = [_without_rate(group) for group in self._optimizer.param_groups]
        if options == self._stateless_with:
            return
        self._before = [copied(self._watch.state.get(witness, {})) for witness in self._witnesses]
        for witness in self._witnesses:
            witness.grad = torch.zeros_like(witness)
        if self.apart:
            for index, witness in enumerate(self._witnesses):
                if not used[index]:
                    witness.grad = None
        self._watch.step()
        names = {
            name: None
            for witness in self._witnesses
            for name, value in self._watch.state.get(witness, {}).items()
            if _elementwise(value, _WITNESS_ELEMENTS)
        }
        for name in names:
            if name not in self.states:
                self.states[name] = State(self._make(), self._make())
        stepped = all(witness.grad is not None for witness in self._witnesses)
        self._stateless_with = options if stepped and not self._watch.state else None

    def keep(self, piece: StepPiece) -> None:
        """Keeps its state as it is, for a step that may have to be undone."""
        for state in self.states.values():
            state.kept[piece.begin : piece.end].copy_(state.now[piece.begin : piece.end])

    def step(self, piece: StepPiece, gradient: Tensor) -> None:
        """One step of one piece."""
        inner, values = self._inner, piece.values
        groups = inner.param_groups
        values.grad = gradient
        inner.param_groups = [{**groups[piece.group], "params": [values]}]
        try:
            inner.step()
        finally:
            inner.param_groups = groups
            values.grad = None
        own = inner.state.get(values)
        if own:
            self._adopt(piece, own)

    def _adopt(self, piece: StepPiece, own: dict[str, Any]) -> None:
        """State that torch has just made moves to where all ranks see it."""
        for name, state in self.states.items():
            value = own.get(name)
            if not isinstance(value, Tensor):
                continue
            place = state.now[piece.begin : piece.end]
            if value.data_ptr() != place.data_ptr():
                own[name] = place.copy_(value.view(-1))

    def undo(self) -> None:
        """The witnesses of a step that was not finished."""
        for witness, before in zip(self._witnesses, self._before, strict=False):
            self._watch.state.pop(witness, None)
            if before:
                self._watch.state[witness] = before

    # --- what a parameter's state is ---

    def state_of(self, index: int, begin: int, end: int) -> dict[str, Any]:
        """The optimizer's state of a run of a parameter's elements: views of what all ranks see, and copies."""
        witness = self._witnesses[index if self.apart else self._flat.groups[index]]
        found: dict[str, Any] = {}
        for name, value in self._watch.state.get(witness, {}).items():
            if not _elementwise(value, _WITNESS_ELEMENTS):
                found[name] = value.clone() if isinstance(value, Tensor) else value
            elif name in self.states:
                found[name] = self.states[name].now[begin:end]
            else:
                return {}  # made with the optimizer, as Adagrad's is, and not stepped yet
        return found

    def load(self, state_of: Callable[[int], dict[str, Any]]) -> None:
        """Takes over each parameter's state: flat where it has an element for each of its own, else scalars."""
        self._part()
        for index, witness in enumerate(self._witnesses):
            begin, count = self._flat.starts[index], self._flat.counts[index]
            loaded = state_of(index)
            self._watch.state[witness] = small = {}
            for name, value in loaded.items():
                if isinstance(value, Tensor) and value.dim():
                    if name not in self.states:
                        self.states[name] = State(self._make(), self._make())
                    self.states[name].now[begin : begin + count].copy_(value)
                    small[name] = witness.new_zeros(_WITNESS_ELEMENTS)
                else:
                    small[name] = value.clone() if isinstance(value, Tensor) else value
        self._build()

    # --- how the share is cut ---

    def _part(self) -> None:
        """Steps each parameter by itself from now on: they no longer have the same history."""
        if self.apart:
            return
        groups = self._flat.groups
        states = [copied(self._watch.state.get(self._witnesses[group], {})) for group in groups]
        self._witnesses = [nn.Parameter(self._values.new_zeros(_WITNESS_ELEMENTS)) for _ in groups]
        self._watch = _like(self._optimizer, self._witnesses, groups)
        for witness, state in zip(self._witnesses, states, strict=True):
            if state:
                self._watch.state[witness] = state
        self.apart = True
        self._build()

    def _build(self) -> None:
        self.pieces = [
            _piece(self._values, group, parts)
            for group, parts in self._flat.pieces(*self._share, PIECE_ELEMENTS, apart=self.apart)
        ]
        self._inner = _like(self._optimizer, [p.values for p in self.pieces], [p.group for p in self.pieces])
        for piece in self.pieces:
            state = self.state_of(piece.parts[0].index, piece.begin, piece.end)
            if state:
                self._inner.state[piece.values] = state


def _piece(values: Tensor, group: int, parts: list[FlatRun]) -> StepPiece:
    begin, end = parts[0].begin, parts[-1].end
    gaps = sum(part.end - part.begin for part in parts) != end - begin
    return StepPiece(group, parts, nn.Parameter(values[begin:end]), begin, end, gaps)


def _like(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], groups: Sequence[int]
) -> torch.optim.Optimizer:
    """Another optimizer of the same class and options, over other parameters; `groups` says which group each is in."""
    kind: Any = type(optimizer)
    known = inspect.signature(kind).parameters
    made = []
    for number, theirs in enumerate(optimizer.param_groups):
        options = {k: v for k, v in theirs.items() if k in known and k != "params"}
        made.append({"params": [p for p, g in zip(parameters, groups, strict=True) if g == number], **options})
    like: torch.optim.Optimizer = kind(made, **{k: v for k, v in optimizer.defaults.items() if k in known})
    return like


def _follow(optimizer: torch.optim.Optimizer, leader: torch.optim.Optimizer) -> None:
    for own, theirs in zip(optimizer.param_groups, leader.param_groups, strict=True):
        own.update({k: v for k, v in theirs.items() if k != "params"})


def _without_rate(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "lr")}


def _elementwise(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.numel() == count


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state of one parameter, with tensors of its own."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
