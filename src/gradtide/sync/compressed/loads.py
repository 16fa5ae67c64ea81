"""Where a program loads another state of the model: what compression left out of gradients goes with the values that
those were of.

Parameters that get other values begin with nothing left out. If the old values come back before anything more is sent
(an average takes their place in a validation, say), so does what was left out at them. What `load_sync_state` gives
belongs to the state that is loaded beside it, before or after.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradtide.sync.trained import Trained

__all__ = ["LeftOut", "LoadedStates"]


class LeftOut(Protocol):
    """What was left out of each parameter's gradients, wherever that is kept."""

    @property
    def moment(self) -> int:
        """Another number, once more has been sent."""

    def take(self, name: str) -> Any:
        """Nothing is left out any more. Returns what was."""

    def give_back(self, name: str, taken: Any) -> None:
        """What was taken is left out again."""


class LoadedStates:
    """Watches one model. `may_load` raises what forbids it, before anything is changed; `loaded` hears of which it was
    after it."""

    def __init__(
        self, trained: Trained, left: LeftOut, may_load: Callable[[], None], loaded: Callable[[list[str]], None]
    ) -> None:
        self._left, self._may_load, self._loaded = left, may_load, loaded
        self._names = {id(parameter): name for name, parameter in trained.everything}
        self._loading: dict[nn.Module, list[tuple[str, str]]] = {}  # its own names of parameters, and the model's
        self._moment = left.moment
        self._before: dict[str, Tensor] = {}  # values, and what was left out at them
        self._taken: dict[str, Any] = {}
        self._awaiting = set[str]()  # names whose values are to come still: what was left out at them is there
        me = weakref.ref(self)
        self._hooks = [hook for module in trained.module.modules() for hook in _hooked(module, me)]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def synced(self) -> None:
        """`load_sync_state` has said what is left out; the values that belong to it are there, or come now."""
        self._follow_moment()
        self._awaiting = set(self._names.values()) - self._taken.keys()
        self._before.clear()
        self._taken.clear()

    def begin(self, module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
        """The module's own parameters are about to be loaded."""
        self._may_load()
        self._follow_moment()
        own = [(local, self._names[id(p)]) for local, p in module._parameters.items() if id(p) in self._names]
        self._loading[module] = [(local, name) for local, name in own if f"{prefix}{local}" in state]
        for local, name in self._loading[module]:
            self._before.setdefault(name, getattr(module, local).detach().clone())

    def end(self, module: nn.Module) -> None:
        """They are loaded."""
        loaded = self._loading.pop(module, [])
        for local, name in loaded:
            self._compare(name, getattr(module, local))
        if loaded:
            self._loaded([name for _, name in loaded])

    def _compare(self, name: str, value: Tensor) -> None:
        if name in self._awaiting:
            self._awaiting.remove(name)
            del self._before[name]
        elif torch.equal(self._before[name], value):
            if name in self._taken:
                self._left.give_back(name, self._taken.pop(name))
        elif name not in self._taken:
            self._taken[name] = self._left.take(name)

    def _follow_moment(self) -> None:
        """Once more has been sent, nothing of before comes back."""
        if self._moment != self._left.moment:
            self._moment = self._left.moment
            self._before.clear()
            self._taken.clear()
            self._awaiting.clear()


def _hooked(module: nn.Module, watch: "weakref.ref[LoadedStates]") -> list[Any]:
    return [
        module.register_load_state_dict_pre_hook(_LoadHook(watch, begins=True)),
        module.register_load_state_dict_post_hook(_LoadHook(watch, begins=False)),
    ]


class _LoadHook:
    """A copy of the model, or one that was pickled, is watched by nobody."""

    def __init__(self, watch: "weakref.ref[LoadedStates] | None" = None, *, begins: bool = False) -> None:
        self._watch, self._begins = watch, begins

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        watch = None if self._watch is None else self._watch()
        if watch is not None and self._begins:
            watch.begin(module, *arguments[:2])
        elif watch is not None:
            watch.end(module)

    def __reduce__(self) -> Any:
        return _LoadHook, ()

    def __deepcopy__(self, memo: Any) -> "_LoadHook":
        return _LoadHook()
