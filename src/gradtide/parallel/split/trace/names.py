"""Parameters and buffers by one name each: of tied ones the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["StateNames"]


@dataclass(frozen=True, slots=True)
class StateNames:
    """What the model calls its tensors."""

    parameters: Mapping[int, str]  # id of a parameter -> its first name
    buffers: Mapping[int, str]
    tied: Mapping[str, str]  # further name -> first

    @classmethod
    def of(cls, model: nn.Module) -> "StateNames":
        tied: dict[str, str] = {}
        parameters = _first_names(model.named_parameters(remove_duplicate=False), tied)
        return cls(parameters, _first_names(model.named_buffers(remove_duplicate=False), {}), tied)

    def of_unit(self, module: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
        """The module's names of its parameters and buffers -> the model's. Constants of a graph are none of them."""
        parameters = module.named_parameters(remove_duplicate=False)
        buffers = module.named_buffers(remove_duplicate=False)
        return (
            {name: self.parameters[id(tensor)] for name, tensor in parameters},
            {name: self.buffers[id(tensor)] for name, tensor in buffers if id(tensor) in self.buffers},
        )


def _first_names(named: Iterator[tuple[str, Tensor]], tied: dict[str, str]) -> dict[int, str]:
    first: dict[int, str] = {}
    for name, tensor in named:
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return first
