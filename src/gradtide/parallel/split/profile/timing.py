"""Seconds of forward and backward, unit by unit.

A unit that runs again and again finds its parameters and activations in the processor's caches, and its own code too;
in training it does not. So as many units as memory has room for run one after the other, forward and then backward, as
in a step.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from gradtide.parallel.split.profile.walking import ChainRun, UnitRun, walk

__all__ = ["UnitTimes", "clock", "time_units"]

ROOM = 256 << 20  # bytes: far beyond what caches hold
ENOUGH_S = 0.4  # more passes than asked for are made if they take no longer: what is short is easily disturbed
MOST = 20


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Of one unit at one number of samples."""

    forward_s: float
    backward_s: float  # where gradients of parameters are there for the first time
    for_weights: float  # the share of backward that is about parameters alone


@dataclass(slots=True, eq=False)
class _Timed:
    """A unit that is timed, pass by pass."""

    one: UnitRun
    forwards: list[float] = field(default_factory=list)
    backwards: list[float] = field(default_factory=list)
    inputs: list[float] = field(default_factory=list)

    @property
    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in self.one.reads.values() if tensor.requires_grad]

    def forward(self, values: dict[str, Tensor]) -> None:
        """Of what the units before it have just made."""
        for name in self.one.reads.keys() & values.keys():
            self.one.reads[name] = values[name].detach().requires_grad_(values[name].requires_grad)
        self.forwards.append(_seconds(self.one.forward))
        values |= self.one.made

    def backward(self, overhead: float, gradients: dict[str, Tensor], *, inputs_alone: bool = False) -> None:
        """From the gradients that the units after it have just found, where there are any."""
        outputs = {name: tensor for name, tensor in self.one.made.items() if tensor.requires_grad}
        given = [gradients.pop(name, None) for name in outputs]
        made = list(outputs.values())
        given = [torch.ones_like(m) if g is None else g for m, g in zip(made, given, strict=True)]
        self.one.made, leaves = {}, self.leaves
        if not outputs:
            self.backwards.append(0.0)
        elif not inputs_alone:
            self.backwards.append(_back_seconds(lambda: torch.autograd.backward(made, given), overhead))
        elif leaves:
            look = lambda: torch.autograd.grad(made, leaves, given, allow_unused=True)  # noqa: E731
            self.inputs.append(_back_seconds(look, overhead))
        for name, leaf in self.one.reads.items():
            if leaf.grad is not None:
                gradients[name] = gradients[name] + leaf.grad if name in gradients else leaf.grad
        for tensor in (*leaves, *self.one.trained):
            tensor.grad = None

    def times(self) -> UnitTimes:
        forward_s, backward_s = _lower_quartile(self.forwards[1:]), _lower_quartile(self.backwards[1:])
        return UnitTimes(forward_s, backward_s, self._share(backward_s))

    def _share(self, backward_s: float) -> float:
        if not self.one.trained:
            return 0.0
        if not self.inputs or not backward_s:
            return 1.0
        return min(1.0, max(0.0, 1.0 - _lower_quartile(self.inputs) / backward_s))


def time_units(
    run: ChainRun, repeats: int, kept: Mapping[str, float] | None = None, room: float | None = None
) -> dict[str, UnitTimes]:
    """The lower quartile of so many passes or more: what else the machine does only ever adds. The first one, in which
    kernels are compiled and memory is fetched, is thrown away. `kept`: bytes of a run of each unit, that may add up to
    `room`; without it they run one by one."""
    overhead, found = _overhead(), dict[str, UnitTimes]()
    for block in _blocks(run, kept or {}, ROOM if room is None else min(room, ROOM)):
        begin = time.perf_counter()
        for number in range(MOST):
            if number > repeats and time.perf_counter() - begin > ENOUGH_S:
                break
            values, gradients = dict[str, Tensor](), dict[str, Tensor]()
            for unit in block:
                unit.forward(values)
            values.clear()
            for unit in reversed(block):
                unit.backward(overhead, gradients)
        for unit in block:
            if unit.one.trained and unit.leaves:
                unit.one.forward()
                unit.backward(overhead, {}, inputs_alone=True)
        found |= {unit.one.unit.name: unit.times() for unit in block}
    return found


def _blocks(run: ChainRun, kept: Mapping[str, float], room: float) -> Iterator[list[_Timed]]:
    """Units that follow each other, each run once."""
    block, left = list[_Timed](), room
    for one in walk(run):
        size = kept.get(one.unit.name, room)
        if block and size > left:
            yield block
            block, left = [], room
        left -= size
        unit = _Timed(one)
        unit.one.forward()
        block.append(unit)
    if block:
        yield block


def _lower_quartile(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def clock() -> float:
    """With one thread all happens in this one, whose own time does not count what else the machine does."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _seconds(action: Callable[[], object]) -> float:
    start = clock()
    action()
    return clock() - start


def _back_seconds(action: Callable[[], object], overhead: float) -> float:
    return max(0.0, _seconds(action) - overhead)


def _overhead() -> float:
    """Of starting a backward, which a segment of several units does once."""
    leaf = torch.zeros(1, requires_grad=True)
    taken = []
    for _ in range(20):
        made, gradient = leaf.view_as(leaf), torch.ones(1)
        taken.append(_seconds(lambda m=made, g=gradient: torch.autograd.backward([m], [g])))  # type: ignore[misc]
    return median(taken)
