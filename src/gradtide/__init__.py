"""Gradtide trains one PyTorch model on many devices and machines, however they are wired.

`import gradtide` is instant: each name below is imported when it is first used (PEP 562).
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradtide.schedule.plan import plan

__version__ = "0.1.0"

# Where each public name lives, relative to this package.
_EXPORTS: dict[str, str] = {"plan": ".schedule.plan"}

__all__ = ["__version__", "plan"]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gradtide' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
