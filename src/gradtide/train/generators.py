"""Where everything is that draws while data is read: kept in checkpoints, so that a resumed run draws the same.

These are the process's own generators (torch's, NumPy's and Python's), and those that loaders, samplers and datasets
hold; and where a sampler counts its epochs. What a function of the user's makes anew each epoch is not known.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

__all__ = ["DataGenerators"]

_DEPTH, _ENTRIES = 6, 64  # how far it is looked: a Dataset may hold a list of all samples
_NUMBER = bool | int | float
_LEAVES = Tensor | np.ndarray | nn.Module | type | str | bytes | _NUMBER


class _Kept(NamedTuple):
    """How one is asked where it is, and put there: in plain values of JSON."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


class DataGenerators:
    """All that are found in the data that a run was given. States are tensors by name: torch's own is ''."""

    def __init__(self, *data: Any) -> None:
        self._kept = {"/numpy": _of_numpy(np.random.mtrand._rand), "/python": _of_python(random._inst)}
        self._drawing = dict[str, torch.Generator]()
        seen = set[int]()
        for number, one in enumerate(data):
            self._look(f"/{number}", one, seen, _DEPTH)

    def states(self) -> dict[str, Tensor]:
        found = {"": torch.get_rng_state()} | {name: one.get_state() for name, one in self._drawing.items()}
        for name, kept in self._kept.items():
            text = json.dumps(kept.get(), default=np.ndarray.tolist).encode()
            found[name] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return found

    def load(self, states: Mapping[str, Tensor]) -> None:
        """Those that an earlier checkpoint doesn't have stay where they are."""
        # Clones: a generator reads a state from where its storage begins, wherever the tensor does.
        torch.set_rng_state(states[""].clone())
        for name, one in self._drawing.items():
            if name in states:
                one.set_state(states[name].clone())
        for name, kept in self._kept.items():
            if name in states:
                kept.put(json.loads(states[name].numpy().tobytes()))

    def _look(self, name: str, one: Any, seen: set[int], depth: int) -> None:
        if one is None or isinstance(one, _LEAVES) or id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, torch.Generator):
            self._drawing[name] = one
        elif isinstance(one, np.random.Generator):
            self._kept[name] = _of_bits(one.bit_generator)
        elif isinstance(one, np.random.RandomState):
            self._kept[name] = _of_numpy(one)
        elif isinstance(one, random.Random):
            self._kept[name] = _of_python(one)
        elif depth:
            self._look_for_numbers(name, one)
            for key, inner in _entries(one):
                self._look(f"{name}.{key}", inner, seen, depth - 1)

    def _look_for_numbers(self, name: str, one: Any) -> None:
        """A sampler's are where it is; of a Dataset that is its epoch."""
        if isinstance(one, Sampler) and not type(one).__module__.startswith("torch."):
            names = [key for key, value in vars(one).items() if isinstance(value, _NUMBER)]
        else:
            names = ["epoch"] if isinstance(one, Dataset) and isinstance(vars(one).get("epoch"), _NUMBER) else []
        if names:
            self._kept[f"{name}#"] = _Kept(lambda: {key: vars(one)[key] for key in names}, vars(one).update)


def _entries(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, list | tuple):
        yield from ((str(index), inner) for index, inner in enumerate(one[:_ENTRIES]))
    elif isinstance(one, dict):
        yield from ((str(key), one[key]) for key in list(one)[:_ENTRIES])
    else:
        held = getattr(one, "__dict__", {})
        hidden = ("_iterator",) if isinstance(one, DataLoader) else ()  # which has a base seed, drawn by the epoch
        yield from ((key, inner) for key, inner in held.items() if key not in hidden)
        if callable(one):
            cells = getattr(one, "__closure__", None) or ()
            yield from ((f"({index})", cell.cell_contents) for index, cell in enumerate(cells) if _is_filled(cell))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a name that has no value yet
        return False


def _of_python(one: random.Random) -> _Kept:
    return _Kept(one.getstate, lambda state: one.setstate((state[0], tuple(state[1]), state[2])))


def _of_numpy(one: np.random.RandomState) -> _Kept:
    def put(state: Any) -> None:
        one.set_state(_with_arrays(state))

    return _Kept(lambda: one.get_state(legacy=False), put)


def _of_bits(one: Any) -> _Kept:
    def put(state: Any) -> None:
        one.state = _with_arrays(state)

    return _Kept(lambda: one.state, put)


def _with_arrays(state: Any) -> Any:
    """JSON has no arrays: of Mersenne's words they are of 32 bits, all others of 64."""
    if isinstance(state, dict):
        word = np.uint32 if state.get("bit_generator") == "MT19937" else np.uint64
        return {key: _arrays_in(value, word) for key, value in state.items()}
    return state


def _arrays_in(value: Any, word: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays_in(inner, word) for key, inner in value.items()}
    return np.array(value, word) if isinstance(value, list) else value
