"""Other memory under the storages that parameters lie in, so that every alias and every view of them follows.

A tensor is a view of a storage. `parameter.data = other` gives one tensor another storage, and leaves everything that
shared its memory with what was there: a kept state_dict, `parameter.detach()`, parameters that are views of one flat
tensor. Here the storage stays, and the memory under it changes, once for all who look at it.

NumPy arrays and DLPack capsules are no views of a storage but bare addresses: they go on showing what was there before,
which is therefore kept as long as the storage is, wherever anybody but the parameters holds it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.sync.trained import Trained
from gradtide.transport.memory import can_see_private_pages

__all__ = ["ParameterStorage", "find_storages", "why_not_moved"]

_swap: Callable[[Any, Any], None] | None = getattr(torch.UntypedStorage, "_swap_data_ptr_", None)  # private to torch
_HOME, _OUTLIVED = "memory_before_gradtide", "memory_of_gradtide"  # attributes of a storage: they go when it goes


@dataclass(frozen=True, slots=True)
class ParameterStorage:
    """A storage and the parameters that lie in it, by their places: (index, first element)."""

    storage: torch.UntypedStorage
    members: Sequence[tuple[int, int]]
    parameters: Sequence[nn.Parameter]  # of the members
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return self.storage.nbytes() // self.dtype.itemsize

    @property
    def values(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype).set_(self.storage)

    def move(self, memory: Tensor) -> None:
        """Puts this memory, which has the values already and a storage of its own, under it."""
        before = self._swap(memory)
        if self._is_held:
            self.storage.__dict__[_HOME] = before

    def move_home(self, values: Tensor | None = None) -> None:
        """Puts memory of this process's own with these values, or those that it has, under it: the one that was there,
        if that was kept."""
        held = self._is_held  # before anything here holds it
        home = torch.empty(0, dtype=self.dtype)
        kept = self.storage.__dict__.pop(_HOME, None)
        home = home.resize_(self.count) if kept is None else home.set_(kept)
        before = self._swap(home.copy_(self.values if values is None else values))
        if held:
            self.storage.__dict__.setdefault(_OUTLIVED, []).append(before)

    def _swap(self, memory: Tensor) -> torch.UntypedStorage:
        """Returns what holds the memory from now on that was there."""
        other = memory.untyped_storage()
        if self.count:
            assert _swap is not None
            _swap(self.storage, other)
        return other

    @property
    def _is_held(self) -> bool:
        """Whether anybody but its parameters may hold it: other tensors, or through them NumPy."""
        own = sum(parameter.untyped_storage()._cdata == self.storage._cdata for parameter in self.parameters)
        holders = torch._C._storage_Use_Count(self.storage._cdata)
        return bool(holders > own + 1)  # the one more is the object that Python knows it by


def find_storages(trained: Trained) -> list[ParameterStorage]:
    """In the order of their first parameters."""
    found: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}
    for index, parameter in enumerate(trained.parameters):
        storage = parameter.untyped_storage()
        found.setdefault(storage._cdata, (storage, []))[1].append((index, int(parameter.storage_offset())))
    dtype, made = trained.parameters[0].dtype, []
    for storage, members in found.values():
        members.sort(key=lambda one: one[1])
        made.append(ParameterStorage(storage, members, [trained.parameters[i] for i, _ in members], dtype))
    return made


def why_not_moved(trained: Trained) -> str:
    """What keeps the memory of parameters from being moved; nothing if it can be."""
    if _swap is None:
        return "this version of PyTorch can't put other memory under a tensor (UntypedStorage._swap_data_ptr_)"
    if not can_see_private_pages():
        return "the system does not say which pages of memory a process has changed (/proc/self/pagemap)"
    buffers = {buffer.untyped_storage()._cdata for _, buffer in trained.module.named_buffers() if _has_storage(buffer)}
    for one in find_storages(trained):
        name = trained.names[one.members[0][0]]
        if one.storage._cdata in buffers:
            return f"{name} and a buffer lie in the same memory"
        if one.storage.is_shared():
            return f"{name} is in memory that other processes may see"
        if why := _why_not_filled(one, trained.names, trained.parameters):
            return why
    return ""


def _why_not_filled(one: ParameterStorage, names: Sequence[str], parameters: Sequence[nn.Parameter]) -> str:
    """Parameters must lie in their storage one after the other, and fill it: the optimizer steps the whole."""
    end, last = 0, names[one.members[0][0]]
    for index, begin in one.members:
        if begin < end:
            return f"{last} and {names[index]} lie in the same memory"
        if begin > end:
            return f"{names[index]} lies in a tensor that holds more than parameters in training"
        end, last = begin + parameters[index].numel(), names[index]
    if end * one.dtype.itemsize != one.storage.nbytes():
        return f"{last} lies in a tensor that holds more than parameters in training"
    return ""


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided
