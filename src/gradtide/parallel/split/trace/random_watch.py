"""What draws random numbers: a forward by Python, numpy or torch, and operations on the meta device."""

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["GeneratorWatch", "RandomWatch", "torch_state"]

# The generators that Python and numpy draw from, the global ones and whoever's.
_KINDS: dict[Any, str] = {
    random.Random: "Python's random",
    np.random.RandomState: "numpy.random",
    np.random.BitGenerator: "numpy.random",
}


class GeneratorWatch(TorchFunctionMode):
    """Tells in `drawn` which generators that are not torch's own were drawn from while it was entered. They go on from
    where they were. Clocks, os.urandom, and generators that are made anew in each forward are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = ""
        self._before: list[tuple[str, Any, Any]] = []

    def __enter__(self) -> "GeneratorWatch":
        self._before = [(whose, one, _state(one)) for whose, one in _generators()]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for whose, one, state in self._before:
            if not _same(_state(one), state):
                _restore(one, state)
                self.drawn = whose

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and kwargs.get("generator") is not None:
            self.drawn = "a torch.Generator"
        return func(*args, **(kwargs or {}))


def _generators() -> Iterator[tuple[str, Any]]:
    kinds: dict[type, str] = {}
    waiting = list(_KINDS.items())
    for kind, whose in waiting:
        kinds[kind] = whose
        waiting += [(own, whose) for own in kind.__subclasses__()]
    for one in gc.get_objects():
        if type(one) in kinds:
            yield kinds[type(one)], one


def _state(one: Any) -> Any:
    if isinstance(one, random.Random):
        return random.Random.getstate(one)
    return one.get_state(legacy=False) if isinstance(one, np.random.RandomState) else one.state


def _restore(one: Any, state: Any) -> None:
    if isinstance(one, random.Random):
        random.Random.setstate(one, state)
    elif isinstance(one, np.random.RandomState):
        one.set_state(state)
    else:
        one.state = state


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same(value, other[name]) for name, value in one.items())
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def torch_state() -> tuple[bytes, ...]:
    """Of torch's own generators."""
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return tuple(state.numpy().tobytes() for state in (torch.get_rng_state(), *on_cuda))


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
