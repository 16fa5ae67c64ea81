"""The outer optimizer's memory, and the room in which changes are averaged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["ChangeRoom", "OuterState", "state_like"]


@dataclass(slots=True)
class OuterState:
    """What the outer optimizer remembers of each parameter, by name, from one way to the next; and how many steps there
    were."""

    steps: int = 0
    of: dict[str, dict[str, Any]] = field(default_factory=dict)


class ChangeRoom:
    """Where changes are averaged: a flat tensor a dtype, and a view of it for each parameter."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.flat: list[Tensor] = []
        self.views: list[Tensor] = [parameter.detach() for parameter in parameters]
        for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
            places = [number for number, parameter in enumerate(parameters) if parameter.dtype == dtype]
            sizes = [parameters[number].numel() for number in places]
            flat = parameters[places[0]].detach().new_zeros(sum(sizes))
            self.flat.append(flat)
            for number, part in zip(places, flat.split(sizes), strict=True):
                self.views[number] = part.view(parameters[number].shape)


def state_like(value: Any, parameter: Tensor) -> Any:
    """A piece of the outer optimizer's state, for a parameter that may have been converted since."""
    if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
        return value.to(parameter.dtype).clone()
    return value.clone() if isinstance(value, Tensor) else value
