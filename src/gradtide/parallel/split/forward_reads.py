"""What forwards read that is neither a tensor nor a number of their module: lists, dictionaries and options that it
holds, attributes of classes, globals and what functions close over. Found by the names in their code."""

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

__all__ = ["ForwardReads"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_OF_MODULES = frozenset(vars(nn.Module()))
_LIBRARIES = {"torch", "numpy", "gradtide", *sys.stdlib_module_names}
_MOST = 1000  # things in a container, or functions that a forward calls: what is beyond is not looked into
_DEPTH = 4


class ForwardReads:
    """Of one module: `now()` says what it reads, to be compared with `first`; `undo` puts back what was there then.
    What all modules of a class read is looked at with one of them: the others are looked at `alone`."""

    def __init__(self, module: nn.Module, alone: bool) -> None:
        self._module, self._alone, self._is_first = module, alone, True
        self._functions = list(_functions(module))
        self._names = {name for one in self._functions for name in _names(one.__code__)} - _OF_MODULES | {"forward"}
        self._kept: list[Any] = []  # so that nothing else gets the id of what was there
        self._undo: list[Callable[[], Any]] = []
        self.first = self.now()
        self._is_first = False

    def now(self) -> dict[str, Any]:
        holders = [*self._of_module(), *(() if self._alone else self._of_class())]
        return {told: self._seen(holder[name], holder, name) for told, name, holder in holders}

    def undo(self) -> None:
        for put_back in self._undo:
            put_back()

    def _of_module(self) -> Iterator[tuple[str, str, Any]]:
        own = vars(self._module)
        for name, value in own.items():
            read = name in self._names if self._functions else name not in _OF_MODULES
            if read and not isinstance(value, (*_PLAIN, Tensor)):
                yield f".{name}", name, own

    def _of_class(self) -> Iterator[tuple[str, str, Any]]:
        for kind in _own_classes(self._module):
            for name, value in vars(kind).items():
                if name in self._names and isinstance(value, (*_PLAIN, *_CONTAINERS)):
                    yield f"{kind.__name__}.{name}", name, _Attributes(kind)
        for function in self._functions:
            for name in _names(function.__code__):
                if _is_data(function.__globals__.get(name)):
                    yield f"{function.__module__}.{name}", name, function.__globals__
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if name != "__class__" and _is_filled(cell) and _is_data(cell.cell_contents):
                    yield f"{function.__qualname__}'s {name}", name, _Cell(cell)

    def _seen(self, value: Any, holder: Any, name: str, depth: int = 0) -> Any:
        if isinstance(value, _PLAIN):
            if self._is_first and not isinstance(holder, tuple):
                self._undo.append(partial(holder.__setitem__, name, value))
            return value
        if self._is_first:
            self._kept.append(value)
        if isinstance(value, Tensor):
            return id(value), value._version
        if type(value).__module__ in ("builtins", "itertools") and hasattr(value, "__next__"):
            return object()  # who reads an iterator changes it
        if isinstance(value, _CONTAINERS) and len(value) <= _MOST and depth < _DEPTH:
            if self._is_first and not isinstance(value, tuple | frozenset):
                self._undo.append(partial(_refill, value, list(value.items() if isinstance(value, dict) else value)))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return type(value).__name__, [(key, self._seen(one, (), "", depth + 1)) for key, one in items]
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict) and not isinstance(value, nn.Module | type | FunctionType) and depth < _DEPTH:
            fields = [(key, held[key]) for key in sorted(self._names.intersection(held))]
            return id(value), [(key, self._seen(one, held, key, depth + 1)) for key, one in fields]
        return id(value.__func__ if isinstance(value, MethodType) else value), len(value) if isinstance(
            value, _CONTAINERS
        ) else 0


class _Attributes:
    """Of a class, as of a dictionary."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self._kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._kind, name, value)


class _Cell:
    """What a function closes over, as of a dictionary."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __getitem__(self, name: str) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self._cell.cell_contents = value


def _refill(container: Any, before: list[Any]) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(before)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_data(value: Any) -> bool:
    plain = isinstance(value, (*_PLAIN, *_CONTAINERS, SimpleNamespace)) and value is not None
    iterator = type(value).__module__ in ("builtins", "itertools") and hasattr(value, "__next__")
    return plain or iterator or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _own_classes(module: nn.Module) -> Iterator[type]:
    """Of the user, before those of torch."""
    for kind in type(module).__mro__:
        if kind.__module__.partition(".")[0] in _LIBRARIES:
            return
        yield kind


def _functions(module: nn.Module) -> Iterator[FunctionType]:
    """The module's own forward and what it calls of the user's: none where that is torch's."""
    classes = list(_own_classes(module))
    waiting: list[Any] = [vars(module).get("forward"), *(vars(kind).get("forward") for kind in classes)]
    known: set[FunctionType] = set()
    for one in waiting:
        function = getattr(one, "__func__", getattr(one, "fget", one))
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, FunctionType) or function in known or len(known) >= _MOST:
            continue
        if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
            continue
        known.add(function)
        yield function
        for name in _names(function.__code__):
            holders = (vars(module), *map(vars, classes), function.__globals__)
            waiting += [holder[name] for holder in holders if name in holder]
        waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant  # getattr(self, "count")
