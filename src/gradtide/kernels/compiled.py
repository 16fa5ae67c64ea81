"""The kernels that Python calls, and what they call by address: loaded from the disk when first asked for, or compiled.

numba is imported by who has to compile, and by nobody else.
"""

from collections.abc import Callable
from functools import cache, cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

from gradtide.kernels.machine_code import as_callable, load_code
from gradtide.kernels.words import Op

__all__ = ["KERNELS", "Kernel", "block_address", "blocks_of"]

_BLOCK_WORDS = 6


class Kernel:
    """A function of so many words in a file beside this one; or, for elements of a type, what one there writes."""

    def __init__(self, file: str, name: str, words: int, element: str = "") -> None:
        self._file, self._name, self._element, self.words = file, name, element, words

    @property
    def function(self) -> Callable[..., Any]:
        """Its source, for numba."""
        found: Callable[..., Any] = getattr(import_module(f"gradtide.kernels.{self._file}"), self._name)
        return found(self._element) if self._element else found

    @cached_property
    def entry(self) -> Any:
        """The machine code; call it with plain integers."""
        symbol = "_".join(["gradtide", self._name, *filter(None, [self._element])])
        return as_callable(self._name, load_code(symbol, lambda: self._compile(symbol)))

    def _compile(self, symbol: str) -> bytes:
        from gradtide.kernels.compiling import compile_kernel

        return compile_kernel(self.function, self.words, symbol)


class KERNELS:
    """Every kernel that Python calls."""

    STEP = Kernel("meeting", "step", 4)
    ALL_REDUCE = Kernel("reducing", "all_reduce", 2)
    REDUCE = Kernel("reducing", "reduce_sources", 6)
    RAISE = Kernel("meeting", "raise_counter", 2)
    SPIN = Kernel("meeting", "spin", 4)
    BEFORE_SLEEP = Kernel("meeting", "before_sleep", 1)
    EXCHANGE = Kernel("exchange", "exchange", 4)
    HAND = Kernel("handing", "hand", 4)
    RESUME_EXCHANGE = Kernel("exchange", "resume_exchange", 1)
    TRANSFER = Kernel("transfer", "transfer", 1)
    COMBINE = MappingProxyType({name: Kernel("combine", "write_combine", 10, name) for name in ("float32", "float64")})


def blocks_of(element: str, op: int) -> tuple[int, int]:
    """Addresses of what combines blocks of these elements, and of what does so with the last rank's."""
    last = block_address(element, op)
    return block_address(element, Op.SUM) if op == Op.MEAN else last, last


@cache
def block_address(element: str, op: int) -> int:
    """element: what numba calls it."""
    symbol = f"gradtide_block_{element}_{op}"

    def compile_it() -> bytes:
        from gradtide.kernels.arithmetic import write_block
        from gradtide.kernels.compiling import compile_block

        return compile_block(write_block(element, op), _BLOCK_WORDS, symbol)

    return load_code(symbol, compile_it)
