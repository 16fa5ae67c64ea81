"""Keeps torch.compile out of the backend: while a compiled model runs, it looks into every Python function called."""

from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["never_compiled"]

C = TypeVar("C", bound=type)


def never_compiled(owner: C) -> C:
    """A decorator of classes: neither their methods nor what those call is compiled. It costs nothing at a call."""
    frames: Any = torch._C._dynamo.eval_frame  # what torch.compiler.disable uses too, which takes 2 s to import
    skip = frames._FrameAction.SKIP
    for method in vars(owner).values():
        if isinstance(method, FunctionType):
            frames.set_code_exec_strategy(method.__code__, frames._FrameExecStrategy(skip, skip))
    return owner
