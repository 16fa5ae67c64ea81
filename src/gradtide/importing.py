"""Importing much at once, without Python's search for garbage in between."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Iterator[None]:
    """What is imported is no garbage. With torch loaded, one search through all there is takes 0.1 s, and the modules
    of a group are enough to set it off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
