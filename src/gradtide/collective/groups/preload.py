"""What a process that makes workers by fork loads for all of them: torch, and the kernels that joining needs."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["load"]


def load() -> None:
    """Starts no thread. What is compiled or read from the disk here is there in every worker."""
    with _nobody_asks_for_scipy():
        from gradtide.kernels import KERNELS

        _ = KERNELS.STEP.entry, KERNELS.RAISE.entry, KERNELS.SPIN.entry, KERNELS.BEFORE_SLEEP.entry
    import gradtide.collective.groups.group  # noqa: F401


@contextlib.contextmanager
def _nobody_asks_for_scipy() -> Iterator[None]:
    """numba, which compiles where there are no kernels yet, imports scipy.linalg (0.26 s, and threads of its own) only
    to see that it is there. It is: we need it."""
    name = "scipy.linalg.cython_blas"
    stand_in = ModuleType(name)
    there = sys.modules.setdefault(name, stand_in)
    yield
    if there is stand_in:
        del sys.modules[name]
