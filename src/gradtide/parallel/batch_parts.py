"""A part of a batch: what is cut, what is entered, and what is refused.

Tensors and arrays are cut along their first dimension, which counts samples, and so are lists and tuples of plain
values, one a sample. Everything else that holds things is a container: it is entered and never cut. A leaf that isn't
as long as the batch is refused, unless it is named as one that every worker gets whole.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError

__all__ = ["count_samples", "cut", "digest"]

_PLAIN = (str, bytes, bool, int, float, complex, type(None), np.generic)
_SHOWN = 4  # paths in a line

Container = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]  # what is in it by name, and how it is made again


def count_samples(batch: Any, whole: Collection[str] = ()) -> int:
    """How many samples the batch has. What can't be cut is refused here, by its path."""
    lengths, wrong, unnamed = dict[str, int](), list[str](), set(whole)
    for path, leaf in _walk(batch, whole):
        unnamed.discard(path)
        if path in whole or leaf is None:
            continue
        if length := _length(leaf):
            lengths[path] = length
        else:
            wrong.append(f"{_name(path)} is {_describe(leaf)}")
    if unnamed:
        there = ", ".join(repr(path) for path, _ in _walk(batch, ())) or "nothing"
        raise ConfigError(f"shard: whole= names {sorted(unnamed)[0]!r}, but this batch has {there}")
    if wrong:
        what = "; ".join(wrong[:_SHOWN])
        raise ConfigError(
            f"shard can't cut this batch: {what}; what every worker is to get as it is, name in whole=[…]"
        )
    return _common(lengths)


def _common(lengths: Mapping[str, int]) -> int:
    if not lengths:
        raise ConfigError("shard can't cut a batch that has no samples: no tensor, array or list of values is in it")
    counts = Counter(lengths.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        odd = [path for path, length in lengths.items() if length != usual]
        one = next(path for path, length in lengths.items() if length == usual)
        found = ", ".join(f"{lengths[path]} in {_name(path)}" for path in [one, *odd][:_SHOWN])
        raise ConfigError(
            f"shard can't cut a batch whose parts have different numbers of samples: {found}; what every worker is to "
            f"get as it is, name: whole={odd[:_SHOWN]}"
        )
    return next(iter(counts))


def cut(batch: Any, begin: int, end: int, whole: Collection[str] = ()) -> Any:
    """The samples from `begin` to `end` of a batch that `count_samples` has let pass."""
    return _cut(batch, "", begin, end, whole)


def _cut(value: Any, path: str, begin: int, end: int, whole: Collection[str]) -> Any:
    if value is None or path in whole:
        return value
    entered = _enter(value)
    if entered is None:
        return value[begin:end]
    inside, make = entered
    return make([_cut(child, _join(path, name), begin, end, whole) for name, child in inside])


def digest(batch: Any) -> bytes:
    """The same for two batches that hold the same numbers and strings in the same places."""
    seen = blake2b(digest_size=16)
    for path, leaf in _walk(batch, ()):
        seen.update(f"{path}\0{type(leaf).__name__}\0".encode())
        if isinstance(leaf, Tensor) and _is_plain_tensor(leaf):
            seen.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            raw: Any = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            seen.update(memoryview(raw.numpy()))
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            seen.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
        elif isinstance(leaf, _PLAIN) or _is_values(leaf):
            seen.update(repr(leaf).encode())
    return seen.digest()


# --- what a batch is made of ---


def _walk(value: Any, whole: Collection[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path; what is to stay whole is one."""
    entered = None if path and path in whole else _enter(value)
    if entered is None:
        yield path, value
        return
    for name, child in entered[0]:
        yield from _walk(child, whole, _join(path, name))


def _enter(value: Any) -> Container | None:
    """What is in a container; None for a leaf."""
    kind: Any = type(value)
    if isinstance(value, (Tensor, PackedSequence, torch.Size, *_PLAIN)) or _is_values(value):
        return None
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()], lambda parts: _mapping_like(value, parts)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return list(zip(kind._fields, value, strict=True)), kind._make
    if kind in (list, tuple):
        return [(str(index), child) for index, child in enumerate(value)], kind
    if dataclasses.is_dataclass(value):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return fields, lambda parts: _dataclass_like(value, [name for name, _ in fields], parts)
    if kind in pytree.SUPPORTED_NODES:  # what its user has told torch about
        node = pytree.SUPPORTED_NODES[kind]
        children, context = node.flatten_fn(value)
        named = [(str(index), child) for index, child in enumerate(children)]
        return named, lambda parts: node.unflatten_fn(parts, context)
    return None


def _mapping_like(value: Any, parts: list[Any]) -> Any:
    if type(value) is dict:
        return dict(zip(value, parts, strict=True))
    made = copy.copy(value)
    try:
        for key, part in zip(list(value), parts, strict=True):
            made[key] = part
    except TypeError:
        raise ConfigError(f"shard can't make a {type(value).__name__} of parts; give it batches in a dict") from None
    return made


def _dataclass_like(value: Any, names: list[str], parts: list[Any]) -> Any:
    made = copy.copy(value)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)  # a frozen one too
    return made


def _is_values(value: Any) -> bool:
    """A list or tuple of plain values is one value a sample."""
    return type(value) in (list, tuple) and all(isinstance(element, _PLAIN) for element in value)


def _is_plain_tensor(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _length(leaf: Any) -> int:
    """How many samples it has; 0: it can't be cut."""
    if isinstance(leaf, Tensor):
        return len(leaf) if leaf.dim() and _is_plain_tensor(leaf) else 0
    if isinstance(leaf, np.ndarray):
        return len(leaf) if leaf.ndim else 0
    return len(leaf) if _is_values(leaf) else 0


def _describe(leaf: Any) -> str:
    if isinstance(leaf, PackedSequence):
        return "a PackedSequence, whose samples are interleaved (give the padded tensor and lengths, pack in the loop)"
    if isinstance(leaf, Tensor) and not _is_plain_tensor(leaf):
        kind = "nested" if leaf.is_nested else "sparse"
        return f"a {kind} tensor (give a dense one and make it {kind} in the loop)"
    if isinstance(leaf, Tensor | np.ndarray):
        what = "a tensor" if isinstance(leaf, Tensor) else "an array"
        return f"{what} without a sample" if leaf.ndim else f"{what} without dimensions"
    if isinstance(leaf, list | tuple) and not leaf:
        return f"an empty {type(leaf).__name__}"
    if isinstance(leaf, _PLAIN):
        return f"a single {type(leaf).__name__}"
    return f"of class {type(leaf).__name__}, which shard doesn't know (give its tensors in a dict or a tuple)"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(path: str) -> str:
    return repr(path) if path else "the batch itself"
