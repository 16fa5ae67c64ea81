"""A chain run unit by unit, each in a copy of its own, with no more alive than is read later."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import run_unit
from gradtide.parallel.split.cut.dropout import DropoutPlace
from gradtide.parallel.split.cut.local_modules import LocalRules, copied, prepared
from gradtide.parallel.split.layers import LayerPart
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["ChainRun", "UnitRun", "batch_of", "walk"]


@dataclass(frozen=True, slots=True)
class ChainRun:
    """One pass over a chain: so many samples, as in training."""

    chain: Chain
    batch: Mapping[str, Tensor]
    samples: int


@dataclass(slots=True)
class UnitRun:
    """A unit that can be run again and again: its copy, and what it reads as leaves of its own autograd."""

    unit: Unit
    module: nn.Module
    place: DropoutPlace
    samples: int
    reads: dict[str, Tensor]
    alive: Mapping[str, Tensor]  # all values that somebody still reads
    made: dict[str, Tensor] = field(default_factory=dict)  # the last time

    def forward(self) -> dict[str, Tensor]:
        self.place.at(0, 0, self.samples)
        self.made = run_unit(Unit(self.unit.name, self.module, self.unit.reads, self.unit.writes), self.reads)
        return self.made

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]


def batch_of(chain: Chain, example: Any, samples: int) -> dict[str, Tensor]:
    """So many samples of an example batch, from its start again where it has fewer."""
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    if len(tensors) != len(chain.inputs):
        raise ConfigError(f"the example has {len(tensors)} tensors, but the chain was traced with {len(chain.inputs)}")
    have = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
    if not have:
        raise ConfigError("the example has no sample in it; give a batch of inputs, as in example=x[:32]")
    rows = torch.arange(samples) % have
    return {
        name: _real(tensor[rows] if tensor.dim() and len(tensor) == have else tensor)
        for name, tensor in zip(chain.inputs, tensors, strict=True)
    }


def walk(run: ChainRun) -> Iterator[UnitRun]:
    """Each unit with what it reads. The caller runs it once or more; what it made last is what the next ones read."""
    values = dict(run.batch)
    last = {name: number for number, unit in enumerate(run.chain.units) for name in unit.reads}
    for number, unit in enumerate(run.chain.units):
        place = DropoutPlace()
        module = prepared(unit.name, _own_copy(unit), LocalRules(place), LayerPart(0, 1)).train()
        reads = {name: values[name].detach().requires_grad_(values[name].requires_grad) for name in unit.reads}
        one = UnitRun(unit, module, place, run.samples, reads, values)
        yield one
        for name, value in one.made.items():
            values[name] = value.detach().requires_grad_(value.requires_grad)
        for name in [name for name in values if last.get(name, -1) <= number]:
            del values[name]


def _own_copy(unit: Unit) -> nn.Module:
    """With the same parameters but gradients of its own; what is on the meta device is made up, as long as it lives."""
    tensors: dict[str, Tensor | None] = {}
    for name, parameter in unit.module.named_parameters():
        tensors[name] = nn.Parameter(_real(parameter.detach()), parameter.requires_grad)
    for name, buffer in unit.module.named_buffers():
        if buffer.is_meta:
            tensors[name] = torch.ones(buffer.shape, dtype=buffer.dtype)
    return copied(unit.name, unit.module, tensors)


def _real(tensor: Tensor) -> Tensor:
    """What is on the meta device has no values; any do, as long as they are no special ones."""
    if not tensor.is_meta:
        return tensor
    made = torch.empty(tensor.shape, dtype=tensor.dtype)
    return made.uniform_(-0.05, 0.05) if tensor.is_floating_point() else made.zero_()
