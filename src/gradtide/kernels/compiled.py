"""Compiles the kernels when they are first asked for, or loads them from numba's cache on disk.

The cache looks at one file alone to see whether it is stale, but a kernel is made of several. So its entry is named
after a digest of those that it is made of. Each kernel has an entry of its own: numba's lists of several lose some, or
mix them up, when two processes write at once.
"""

import hashlib
import inspect
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import cfunc, njit, types
from numba.core.errors import NumbaIRAssumptionWarning

from gradtide.even_share import even_share
from gradtide.kernels.arithmetic import write_block
from gradtide.kernels.exchange import exchange, resume_exchange
from gradtide.kernels.handing import hand
from gradtide.kernels.meeting import before_sleep, raise_counter, spin, step
from gradtide.kernels.reducing import all_reduce, reduce_sources
from gradtide.kernels.transfer import transfer
from gradtide.kernels.words import Op

__all__ = ["KERNELS", "Kernel", "block_address", "blocks_of"]


class Kernel:
    """A function of so many words, compiled when first asked for."""

    def __init__(self, function: Callable[..., Any], words: int) -> None:
        self.function, self.signature = function, types.int64(*[types.int64] * words)
        self._entry: Any = None

    @property
    def entry(self) -> Any:
        """The machine code; call it with plain integers. It takes them as they are: a third of a microsecond less than
        numba's dispatch on types."""
        if self._entry is None:
            function = _named(self.function, self.function.__name__, "*.py")
            self._entry = _compiled(lambda cached: self._compile(njit(nogil=True, cache=cached)(function)))
        return self._entry

    def _compile(self, dispatcher: Any) -> Any:
        dispatcher.compile(self.signature.args)
        return dispatcher.overloads[self.signature.args].entry_point


class KERNELS:
    """Every kernel that Python calls."""

    STEP = Kernel(step, 4)
    ALL_REDUCE = Kernel(all_reduce, 2)
    REDUCE = Kernel(reduce_sources, 6)
    RAISE = Kernel(raise_counter, 2)
    SPIN = Kernel(spin, 4)
    BEFORE_SLEEP = Kernel(before_sleep, 1)
    EXCHANGE = Kernel(exchange, 4)
    HAND = Kernel(hand, 4)
    RESUME_EXCHANGE = Kernel(resume_exchange, 1)
    TRANSFER = Kernel(transfer, 1)


def blocks_of(element: Any, op: int) -> tuple[int, int]:
    """Addresses of what combines blocks of these elements, and of what does so with the last rank's."""
    last = block_address(element, op)
    return block_address(element, Op.SUM) if op == Op.MEAN else last, last


_kept: list[Any] = []  # machine code lives as long as what numba made of it


@cache
def block_address(element: Any, op: int) -> int:
    signature = types.void(*[types.int64] * 6)
    block = _named(write_block(element, op), f"block_{element}_{op}", "[aw]*.py")  # arithmetic, atomics, words
    function = _compiled(lambda cached: cfunc(signature, cache=cached)(block))
    _kept.append(function)
    return int(function.address)


def _compiled(compile_it: Callable[[bool], Any]) -> Any:
    """A cache that is missing, read-only, full or damaged costs the seconds of a compilation, never the run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaIRAssumptionWarning)
        try:
            return compile_it(True)
        except Exception:
            return compile_it(False)


def _named(function: Any, name: str, files: str) -> Any:
    function.__qualname__ = f"{name}_{_digest(files)}"
    return function


@cache
def _digest(files: str) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for file in (*sorted(Path(__file__).parent.glob(files)), Path(inspect.getfile(even_share))):
        digest.update(file.read_bytes())
    return digest.hexdigest()
