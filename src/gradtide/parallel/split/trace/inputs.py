"""An example batch as named tensors, and how to call the model with others like it."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import arguments_of, samples_of

__all__ = ["Example", "on_device_of"]


@dataclass(frozen=True, slots=True)
class Example:
    """A batch: its tensors by name, and everything else that the model was given with them."""

    tensors: dict[str, Tensor]
    leaves: tuple[Any, ...]  # of (args, kwargs); of a tensor its name
    structure: Any

    @classmethod
    def of(cls, model: nn.Module, example: Any) -> "Example":
        args, kwargs = arguments_of(model, example)
        paths, structure = pytree.tree_flatten_with_path((args, kwargs))
        tensors: dict[str, Tensor] = {}
        leaves: list[Any] = []
        for path, leaf in paths:
            if isinstance(leaf, Tensor):
                name = _name(model, path)
                tensors[name] = leaf
                leaves.append(_InputName(name))
            else:
                leaves.append(leaf)
        if not samples_of(tensors):
            raise ConfigError("the example has no sample in it; give a batch of inputs, as in example=x[:32]")
        return cls(tensors, tuple(leaves), structure)

    @property
    def rest(self) -> tuple[Any, ...]:
        """What is no tensor."""
        return tuple(leaf for leaf in self.leaves if not isinstance(leaf, _InputName))

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with other tensors, or what stands for them, in the order of their names."""
        given = dict(zip(self.tensors, tensors, strict=True))
        filled = [given[leaf] if isinstance(leaf, _InputName) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(filled, self.structure)
        return args, kwargs

    def first(self, samples: int) -> dict[str, Tensor]:
        """The first samples of it, again from the start where there are too few; what is not batched stays whole."""
        have = samples_of(self.tensors)
        return {name: _rows(tensor, have, samples) for name, tensor in self.tensors.items()}


def on_device_of(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch for a model that may be on the meta device: nothing but shapes can be compared there."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return {name: tensor.to("meta") for name, tensor in batch.items()}
    return batch


class _InputName(str):
    """The place of a tensor."""

    __slots__ = ()


def _rows(tensor: Tensor, have: int, want: int) -> Tensor:
    if not tensor.dim() or len(tensor) != have:
        return tensor
    if want <= have:
        return tensor[:want]
    return tensor[[row % have for row in range(want)]]


def _name(model: nn.Module, path: tuple[Any, ...]) -> str:
    """As forward calls it: the argument's name, and where in it."""
    keyword, *rest = [getattr(key, "key", getattr(key, "idx", key)) for key in path]
    if keyword == 0:
        names, place = list(inspect.signature(model.forward).parameters), int(rest[0])
        rest[0] = names[place] if place < len(names) else f"input{place}"
    return ".".join(str(part) for part in rest)
