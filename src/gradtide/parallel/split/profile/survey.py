"""Bytes of a chain: of each value, and of what each unit keeps for its backward, by running a few samples."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradtide.parallel.split.profile.walking import ChainRun, UnitRun, walk

__all__ = ["Survey", "ValueSize", "survey"]


@dataclass(frozen=True, slots=True)
class ValueSize:
    """A value at one number of samples."""

    bytes: int
    rows: int
    has_gradient: bool
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(slots=True)
class Survey:
    """What was seen at one number of samples."""

    samples: int
    values: dict[str, ValueSize] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)  # unit -> bytes
    keeper: dict[str, int] = field(default_factory=dict)  # value -> the number of the unit that counts it as saved
    brought: dict[str, int] = field(default_factory=dict)  # unit -> bytes that it reads and no unit has kept before
    peak: int = 0  # bytes that one unit's run takes beside the model: values alive, what it keeps, and as much again


def survey(run: ChainRun) -> Survey:
    """Runs every unit once."""
    found = Survey(run.samples)
    for name, tensor in run.batch.items():
        found.values[name] = _size(tensor)
    batch = {_storage(tensor) for tensor in run.batch.values()}  # it is there anyway, and left out
    kept = set(batch)  # storages of values that a unit has kept: they count once
    owner: dict[int, int] = {}  # of these storages, which unit counts them
    for number, one in enumerate(walk(run)):
        saved, made = _saved_by(one)
        parameters = {_storage(parameter) for parameter in [*one.module.parameters(), *one.module.buffers()]}
        found.brought[one.unit.name] = sum(
            size
            for place, size in {_storage(t): t.untyped_storage().nbytes() for t in one.reads.values()}.items()
            if place not in kept
        )
        new = {place: size for place, size in saved.items() if place not in parameters and place not in kept}
        values = {_storage(tensor) for tensor in [*one.alive.values(), *made.values()]}
        kept = batch | ((kept | new.keys()) & values)  # a storage that nobody reads any more may be another one's soon
        owner = {place: owner.get(place, number) for place in kept - batch}
        found.keeper |= {
            name: owner[place] for name, tensor in {**one.alive, **made}.items() if (place := _storage(tensor)) in owner
        }
        found.saved[one.unit.name] = sum(new.values())
        for name, tensor in made.items():
            found.values[name] = _size(tensor)
        own = sum(parameter.nbytes for parameter in one.module.parameters() if parameter.requires_grad)
        alive = sum(tensor.nbytes for tensor in one.alive.values())
        found.peak = max(found.peak, alive + 2 * sum(saved.values()) + sum(t.nbytes for t in made.values()) + 2 * own)
    return found


def _saved_by(one: UnitRun) -> tuple[dict[int, int], dict[str, Tensor]]:
    """Storages that a unit's forward keeps for its backward with their bytes, and what it makes."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[_storage(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = one.forward()
    return {place: tensor.untyped_storage().nbytes() for place, tensor in saved.items()}, made


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: Tensor) -> ValueSize:
    rows = len(tensor) if tensor.dim() else -1
    return ValueSize(tensor.nbytes, rows, tensor.requires_grad, tuple(tensor.shape), tensor.element_size())
