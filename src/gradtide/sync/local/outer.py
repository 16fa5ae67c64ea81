"""What all workers begin a window with, the outer optimizer that steps it, and the room in which changes are added."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.collective import Group
from gradtide.store.rules.updates import make_optimizer
from gradtide.store.wire.messages import UpdateRule

__all__ = ["ChangeRoom", "OuterState", "WindowBase"]


@dataclass(slots=True)
class OuterState:
    """What goes on from one way to the next: what the outer optimizer remembers of each parameter, by name, and how far
    this worker is."""

    steps: int = 0
    windows: int = 0  # that have ended with a meeting
    alike: bool = True  # whether the next way begins with worker 0's optimizer state on all
    generation: int = 0  # of the workers that this one has begun or gone on with
    of: dict[str, dict[str, Any]] = field(default_factory=dict)
    inside: Group | None = None  # this host's workers, if they take every step together


class ChangeRoom:
    """Where changes are averaged: a flat tensor a dtype, and a view of it for each parameter."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.flat: list[Tensor] = []
        self.places: list[list[int]] = []  # which parameters lie in each of them, in order
        self.views: list[Tensor] = [parameter.detach() for parameter in parameters]
        for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
            places = [number for number, parameter in enumerate(parameters) if parameter.dtype == dtype]
            sizes = [parameters[number].numel() for number in places]
            flat = parameters[places[0]].detach().new_zeros(sum(sizes))
            self.flat.append(flat)
            self.places.append(places)
            for number, part in zip(places, flat.split(sizes), strict=True):
                self.views[number] = part.view(parameters[number].shape)


class WindowBase:
    """The parameters that all workers had when they last met, by name."""

    def __init__(self, rule: UpdateRule, own: Mapping[str, nn.Parameter], known: OuterState) -> None:
        self._own = own
        self.values = {name: nn.Parameter(p.detach().clone()) for name, p in own.items()}
        self.room = ChangeRoom(list(self.values.values()))
        nothing = [nn.Parameter(torch.zeros(1))]  # while no optimizer has a parameter of the model
        self._optimizer = make_optimizer(rule, list(self.values.values()) or nothing)
        self.remember(known)

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values.values())

    @property
    def by_parameter(self) -> dict[int, Tensor]:
        """By the ids of the parameters that go on from it."""
        return {id(self._own[name]): value for name, value in self.values.items()}

    def remember(self, known: OuterState) -> None:
        """The outer optimizer goes on with what is known of each parameter."""
        for name, value in self.values.items():
            if name in known.of:
                self._optimizer.state[value] = {k: _state_like(one, value) for k, one in known.of[name].items()}

    def tell(self, known: OuterState) -> None:
        """What the outer optimizer remembers; of those that are frozen just now it is known already."""
        state = self._optimizer.state
        known.of |= {name: dict(state[value]) for name, value in self.values.items() if value in state}

    @torch.no_grad()
    def take(self, names: Collection[str] | None = None) -> None:
        """A window begins with the parameters, or these of them, as they are."""
        for name, value in self.values.items():
            if names is None or name in names:
                value.copy_(self._own[name])

    @torch.no_grad()
    def give(self) -> None:
        """The parameters become what a window begins with."""
        for name, value in self.values.items():
            self._own[name].copy_(value)

    @torch.no_grad()
    def note_changes(self) -> None:
        """What this worker has changed goes into the room."""
        for change, (name, value) in zip(self.room.views, self.values.items(), strict=True):
            torch.sub(value, self._own[name], out=change)

    def step(self) -> None:
        """The outer optimizer steps with what is in the room now, and the parameters become what that gives."""
        for change, value in zip(self.room.views, self.values.values(), strict=True):
            value.grad = change
        self._optimizer.step()
        for value in self.values.values():
            value.grad = None
        self.give()


def _state_like(value: Any, parameter: Tensor) -> Any:
    """A piece of the outer optimizer's state, for a parameter that may have been converted since."""
    if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
        return value.to(parameter.dtype).clone()
    return value.clone() if isinstance(value, Tensor) else value
