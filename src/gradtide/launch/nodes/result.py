"""What a function returned in a worker, for the program that it is a fork of: plain values, and records of ours."""

import importlib
import os
import warnings
from typing import Any, Self

import msgspec

__all__ = ["Result"]

_OURS = "gradtide."


class Result:
    """Memory that forks share: the first worker writes it, the program reads it."""

    def __init__(self, name: str) -> None:
        self._name, self._memory = name, os.memfd_create("gradtide-result", os.MFD_CLOEXEC)

    def keep(self, rank: int, value: Any) -> None:
        if rank == 0:
            try:
                data = msgspec.msgpack.encode([True, _as_plain(value)])
            except (TypeError, OverflowError, msgspec.MsgspecError) as error:
                data = msgspec.msgpack.encode([False, str(error)])
            os.pwrite(self._memory, data, 0)

    def read(self) -> Any:
        """None, and a warning, if it is nothing that can be handed over."""
        size = os.fstat(self._memory).st_size
        is_plain, value = msgspec.msgpack.decode(os.pread(self._memory, size, 0)) if size else (True, None)
        if is_plain:
            return _as_it_was(value)
        warnings.warn(
            f"{self._name} returned what can't be handed to this process ({value}): None is returned; return numbers, "
            "text, lists and dicts of these or a History, and save the rest to a file",
            stacklevel=4,
        )
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._memory)


def _as_plain(value: Any) -> Any:
    """As what msgpack has, each list and dict with its kind before it."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(_as_plain, value)]
    if kind is dict:
        return ["dict", *([_as_plain(key), _as_plain(one)] for key, one in value.items())]
    if isinstance(value, msgspec.Struct) and kind.__module__.startswith(_OURS):
        return [f"{kind.__module__}:{kind.__qualname__}", msgspec.to_builtins(value)]
    raise TypeError(f"a {kind.__name__}")


def _as_it_was(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "dict":
        return {_as_it_was(key): _as_it_was(one) for key, one in parts}
    if kind in ("list", "tuple"):
        return [*map(_as_it_was, parts)] if kind == "list" else tuple(map(_as_it_was, parts))
    module, _, name = kind.partition(":")
    return msgspec.convert(parts[0], getattr(importlib.import_module(module), name))
