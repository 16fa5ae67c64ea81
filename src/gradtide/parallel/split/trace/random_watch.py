"""Which operations draw random numbers, where no generator tells: on the meta device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["RandomWatch"]


class RandomWatch(TorchDispatchMode):
    """Notes them while it is entered. The first time that takes seconds: torch imports its compiler for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _drops_nothing(func: Any, args: Any) -> bool:
    """Attention that was asked for no dropout is marked as random all the same."""
    if "attention" not in str(func):
        return False
    places = {argument.name: place for place, argument in enumerate(func._schema.arguments)}
    place = places.get("dropout_p", -1)
    return not (0 <= place < len(args) and args[place])
