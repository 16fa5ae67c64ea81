"""Tells torch that there is a backend called gradtide: torch calls register() while it is imported.

It runs in every program that imports torch where gradtide is installed, so it imports nothing else: what the backend
needs is loaded when a process group is made. It costs some microseconds.
"""

from typing import Any

__all__ = ["register"]


def register() -> None:
    """The entry point in the group torch.backends. An exception here would make `import torch` fail: there is none."""
    import contextlib

    with contextlib.suppress(Exception):  # a torch that has no torch.distributed, or an older one
        from torch.distributed import Backend

        Backend.register_backend("gradtide", _create, extended_api=True, devices=["cpu"])


def _create(settings: Any, options: Any) -> Any:
    from gradtide.importing import without_collection

    with without_collection():
        from gradtide.collective.c10d.creating import create

    return create(settings, options)
