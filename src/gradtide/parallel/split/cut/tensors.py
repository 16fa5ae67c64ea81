"""A shard's own parameters and buffers: copies of its parts of the model's, one tensor for tied ones."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.local import LocalParameter
from gradtide.parallel.split.cut.placing import ShardedUnit
from gradtide.parallel.split.layers.registry import Index, LayerPart
from gradtide.parallel.split.units import Unit

__all__ = ["TensorParts", "TensorSource", "check_ties", "pieces_of"]

# Whole tensors by the model's names, for a model that is on the meta device (as meta.initial_tensors gives them).
TensorSource = Callable[[Collection[str]], Iterable[tuple[str, torch.Tensor]]]


def pieces_of(placed: ShardedUnit, shard: int, shards: int) -> dict[str, Index | None]:
    """What a shard holds of each of the unit's tensors (None: nothing; (): all), by the module's names."""
    pieces: Mapping[str, Index | None] = {}
    if placed.way is not None:
        pieces = placed.way.pieces(placed.unit.module, LayerPart(shard, shards, placed.given))
    return {name: pieces.get(name, ()) for name in (*placed.unit.parameters, *placed.unit.buffers)}


def check_ties(units: Sequence[ShardedUnit], shards: int) -> None:
    """Refuses a parameter of several units that isn't cut in the same way by all."""
    seen: dict[str, tuple[str, list[Index | None]]] = {}
    for placed in units:
        held = [pieces_of(placed, shard, shards) for shard in range(shards)]
        for name, of_model in {**placed.unit.parameters, **placed.unit.buffers}.items():
            indexes = [pieces[name] for pieces in held]
            first, expected = seen.setdefault(of_model, (placed.unit.name, indexes))
            if indexes != expected:
                raise ConfigError(
                    f"{first} and {placed.unit.name} share {of_model} but cut it differently; "
                    "cut both along the same dimension of it, or leave both whole"
                )


@dataclass(slots=True, eq=False)
class TensorParts:
    """Makes each part once."""

    shard: int
    shards: int
    device: torch.device
    source: TensorSource | None = None
    parameters: list[LocalParameter] = field(default_factory=list)
    buffers: list[LocalParameter] = field(default_factory=list)
    _made: dict[tuple[str, bool], torch.Tensor] = field(default_factory=dict)

    def of(self, sharded: ShardedUnit) -> dict[str, torch.Tensor | None]:
        """The unit's tensors on this shard, by the module's names."""
        everyone = [pieces_of(sharded, shard, self.shards) for shard in range(self.shards)]
        whole = self._whole(sharded.unit)
        found: dict[str, torch.Tensor | None] = {}
        for name, index in everyone[self.shard].items():
            first = all(pieces[name] != index for pieces in everyone[: self.shard])
            found[name] = None if index is None else self._part(sharded.unit, name, whole[name], index, first)
        return found

    def _whole(self, unit: Unit) -> dict[str, torch.Tensor]:
        """The whole of each: the model's own, or one that is made now, for this unit alone."""
        found: dict[str, torch.Tensor] = {name: unit.module.get_parameter(name) for name in unit.parameters}
        found |= {name: unit.module.get_buffer(name) for name in unit.buffers}
        of_model = {**unit.parameters, **unit.buffers}
        lacking = {of_model[name] for name, tensor in found.items() if tensor.is_meta} - {
            name for name, _ in self._made
        }
        if not lacking or self.device.type == "meta":
            return found
        if self.source is None:
            raise ConfigError(f"{unit.name} is on the meta device and has no values; say how its parameters begin")
        made = dict(self.source(lacking))
        for name, tensor in found.items():
            if of_model[name] in made:
                found[name] = made[of_model[name]].requires_grad_(tensor.requires_grad)
        return found

    def _part(self, unit: Unit, name: str, whole: torch.Tensor, index: Index, first: bool) -> torch.Tensor:
        is_parameter = name in unit.parameters
        of_model = unit.parameters[name] if is_parameter else unit.buffers[name]
        if (of_model, is_parameter) not in self._made:
            tensor = whole.detach()[index].clone(memory_format=torch.preserve_format).to(self.device)
            local = nn.Parameter(tensor, requires_grad=whole.requires_grad) if is_parameter else tensor
            entry = LocalParameter(of_model, local, tuple(whole.shape), index, first)
            (self.parameters if is_parameter else self.buffers).append(entry)
            self._made[of_model, is_parameter] = local
        return self._made[of_model, is_parameter]
