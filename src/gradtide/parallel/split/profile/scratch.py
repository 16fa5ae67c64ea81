"""Bytes that a unit needs for a moment: kernels' workspaces, values that nobody keeps, gradients on their way.

Only torch's profilers see allocations on the CPU. The older one of them is taken, which starts in no time and prints
nothing; its events come in order, thread by thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd, _profiler

from gradtide.parallel.split.profile.walking import ChainRun, UnitRun, walk

__all__ = ["UnitScratch", "peak_of", "profiler_is_taken", "scratch_of_units"]


@dataclass(frozen=True, slots=True)
class UnitScratch:
    """Of one unit at one number of samples, at its peak."""

    forward: int  # bytes that its forward allocates, what it makes and keeps among them
    backward: int  # that its backward needs beside what was kept: gradients of what it made and read among them


def scratch_of_units(run: ChainRun) -> dict[str, UnitScratch]:
    """Runs every unit twice: what torch sets up the first time does not count."""
    look = _guessed if profiler_is_taken() else _measured
    return {one.unit.name: look(one) for one in walk(run)}


def profiler_is_taken() -> bool:
    """There is one seat, and somebody else may have it."""
    return bool(_autograd._profiler_enabled())


def _measured(one: UnitRun) -> UnitScratch:
    for parameter in one.trained:
        parameter.grad = torch.zeros_like(parameter)  # as from a step's second micro-batch on
    found = UnitScratch(0, 0)
    for _ in range(2):
        forward = peak_of(one.forward)
        outputs = [tensor for tensor in one.made.values() if tensor.requires_grad]
        gradients = [torch.ones_like(tensor) for tensor in outputs]
        given = sum(gradient.nbytes for gradient in gradients)
        backward = peak_of(partial(torch.autograd.backward, outputs, gradients)) if outputs else 0
        found = UnitScratch(forward, backward + given)
        for leaf in one.reads.values():
            leaf.grad = None
    return found


def _guessed(one: UnitRun) -> UnitScratch:
    made: list[Tensor] = list(one.forward().values())
    given = sum(tensor.nbytes for tensor in made if tensor.requires_grad)
    taken = sum(tensor.nbytes for tensor in one.reads.values() if tensor.requires_grad)
    largest = max((parameter.nbytes for parameter in one.trained), default=0)
    return UnitScratch(sum(tensor.nbytes for tensor in made), given + taken + largest)


def peak_of(action: Callable[[], Any]) -> int:
    """The most that this thread had allocated at once for an action, beside what was there before."""
    how = _profiler.ProfilerConfig(
        _profiler.ProfilerState.CPU, False, True, False, False, False, _profiler._ExperimentalConfig()
    )
    _autograd._enable_profiler_legacy(how)
    try:
        action()
    finally:
        threads: Any = _autograd._disable_profiler_legacy()
    most = 0
    for events in threads:
        now = 0
        for event in events:
            if event.kind() == "memory_alloc":
                now += event.cpu_memory_usage()
                most = max(most, now)
    return most
