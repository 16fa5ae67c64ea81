"""Kernels of codecs, compiled when first used for a type of elements, or loaded from numba's cache on disk.

Each has an entry of its own in that cache, for each type: numba's lists of several lose some when two processes write
at once.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

__all__ = ["Array", "CodecKernel", "Element", "element_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Element:
    """A type of elements: how kernels see it as a number, and as bits."""

    number: Any
    bits: Any
    width: int  # in bits
    infinite: int  # the bits of infinity: those of whatever is finite, but for the sign, are less
    smallest: float  # that has all its digits

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.number)
        return found


_SINGLE = Element(np.float32, np.uint32, 32, 0x7F800000, 2.0**-126)
_DOUBLE = Element(np.float64, np.uint64, 64, 0x7FF0000000000000, 2.0**-1022)


def element_of(dtype: Any) -> Element:
    """Codecs know float32 and float64."""
    return _SINGLE if np.dtype(dtype) == np.float32 else _DOUBLE


class CodecKernel:
    """A function that is written for each type of elements."""

    def __init__(self, write: Callable[[Element], Callable[..., Any]]) -> None:
        self._write = write

    def __call__(self, dtype: Any, *arguments: Any) -> Any:
        return _compiled(self._write, element_of(dtype))(*arguments)


@cache
def _compiled(write: Callable[[Element], Callable[..., Any]], element: Element) -> Callable[..., Any]:
    function = write(element)
    function.__qualname__ = f"{write.__module__.rpartition('.')[2]}_{write.__name__}_{element.width}"
    from numba import njit  # a third of a second, if a job makes gradients smaller at all
    from numba.core.errors import NumbaWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaWarning)
        try:
            return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except Exception:  # a cache that can't be written costs the seconds of a compilation, never the run
            return njit(nogil=True)(function)  # type: ignore[no-any-return]
