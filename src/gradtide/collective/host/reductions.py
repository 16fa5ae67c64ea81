"""The reductions by name, and who computes them: kernels for the common types, torch for the rest; same bits."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import torch

from gradtide.errors import ConfigError

if TYPE_CHECKING:
    from gradtide.collective.host.elements import Blocks

__all__ = ["REDUCTIONS", "Reduction", "combine", "reduce_in_order", "reduction"]

_Combine = Callable[..., torch.Tensor]

# One rounding an operation: torch rounds bfloat16 and float16 after each of these, and so do the kernels.
_TORCH: dict[str, _Combine] = {
    "sum": torch.add,
    "mean": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
REDUCTIONS = tuple(_TORCH)


class Reduction:
    """A reduction of elements of one dtype. `blocks` are what kernels call, or None where torch computes.

    They are compiled when first asked for: the devices of one process add with torch alone, and need not load numba.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name, self.dtype, self.item_bytes = name, dtype, dtype.itemsize

    @cached_property
    def blocks(self) -> "Blocks | None":
        from gradtide.collective.host.elements import blocks_for

        return blocks_for(self.name, self.dtype)

    def finish(self, target: torch.Tensor, ranks: int) -> None:
        if self.name == "mean":
            target.div_(ranks)


@cache
def reduction(name: str, dtype: torch.dtype) -> Reduction:
    """The reduction called `name` on this dtype, if torch has it on the CPU."""
    if name not in _TORCH:
        raise ConfigError(f"no reduction is called {name!r}; there are {', '.join(REDUCTIONS)}")
    if name == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise ConfigError(f"the mean of {_short(dtype)} would have to be rounded; reduce with sum and divide yourself")
    probe = torch.empty(1, dtype=dtype)
    try:
        _TORCH[name](probe, probe, out=probe)
    except (RuntimeError, TypeError):
        raise ConfigError(f"torch has no {name} of {_short(dtype)} on the CPU; convert the tensor first") from None
    return Reduction(name, dtype)


def combine(how: Reduction, target: torch.Tensor, source: torch.Tensor) -> None:
    """target = target op source, rounding once. Both are of how.dtype, on any one device."""
    _TORCH[how.name](target, source, out=target)


def reduce_in_order(how: Reduction, target: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
    """target = the sources one after the other, and the mean's division. The target may be the first source."""
    if target is not sources[0]:
        target.copy_(sources[0])
    for source in sources[1:]:
        combine(how, target, source)
    how.finish(target, len(sources))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
