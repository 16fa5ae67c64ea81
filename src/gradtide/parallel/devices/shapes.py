"""What a model or a loss was given, as a line beside torch's own message when it can't compute with that."""

import contextlib
from abc import ABC, abstractmethod
from typing import Any, Self

from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["LossGiven", "ModelGiven"]

_MOST = 4  # tensors that are shown
_TORCHS = RuntimeError, IndexError, ValueError, TypeError  # what torch raises for shapes and dtypes


class _Given(ABC):
    """`with` it, an error keeps its type and text, and gets a note."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _TORCHS) and not getattr(error, "__notes__", None):
            with contextlib.suppress(Exception):  # a device that has failed may not even show what it holds
                error.add_note(f"gradtide: {self.tell()}")

    @abstractmethod
    def tell(self) -> str:
        """What was given, in words."""


class ModelGiven(_Given):
    """Around forward."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._module, self._inputs = module, inputs

    def tell(self) -> str:
        first = next(iter(self._module.named_parameters()), None)
        of_model = "" if first is None else f"; the model's first parameter, {first[0]}, is {_shown(first[1])}"
        return f"the inputs are {_shown(self._inputs)}{of_model}"


class LossGiven(_Given):
    """Around the loss."""

    def __init__(self, outputs: Any, targets: Any) -> None:
        self._outputs, self._targets = outputs, targets

    def tell(self) -> str:
        outputs, targets = self._outputs, self._targets
        hint = _hint(outputs, targets) if isinstance(outputs, Tensor) and isinstance(targets, Tensor) else ""
        return f"the outputs are {_shown(outputs)}, the targets {_shown(targets)}{hint}"


def _hint(outputs: Tensor, targets: Tensor) -> str:
    """For scores of classes, what is probably meant."""
    if outputs.dim() < 2 or targets.dim() not in (outputs.dim() - 1, outputs.dim()):
        return ""
    if targets.dim() == outputs.dim():
        columns = targets.shape[-1] == 1 < outputs.shape[-1]
        return "; classes are one number a sample: targets.squeeze(-1)" if columns else ""
    if targets.is_floating_point() or targets.element_size() not in (1, 8):
        return "; classes are whole numbers of int64: targets.long()"
    least, most, classes = int(targets.min()), int(targets.max()), outputs.shape[1]
    if least >= 0 and most < classes:
        return ""
    return f"; targets go from {least} to {most}, and {classes} outputs are of the classes 0 to {classes - 1}"


def _shown(value: Any) -> str:
    """`float32 (64, 10)`; of nested ones, the first few."""
    leaves = pytree.tree_leaves(value)
    return ", ".join([*map(_leaf, leaves[:_MOST]), *(["…"] if len(leaves) > _MOST else [])])


def _leaf(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
