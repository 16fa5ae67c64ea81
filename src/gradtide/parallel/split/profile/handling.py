"""What two devices take to send each other bytes, exchange them and add them up: at two sizes, after other work."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.parallel.split.run.speaking.communicator import Communicator
from gradtide.schedule.step.shape import Handling

__all__ = ["DeviceTalk", "Layers", "lowest", "talk"]

SMALL, LARGE = 1 << 8, 1 << 18  # elements: beside a kilobyte and a megabyte
TURNS = 20
BOTH = (0, 1)
_TAG = 1 << 41


@dataclass(frozen=True, slots=True)
class DeviceTalk:
    """By bytes: of a message, that each sends in an exchange, of gradients that are added up."""

    message: Handling  # from the moment it is sent until somebody who waits for it has it
    send: Handling  # of that, what its sender has to do with it
    receive: Handling  # of somebody who takes it when it has long been sent
    exchange: Handling
    gather: Handling  # gradients that are put together
    sum: Handling  # and then added up
    add_s_per_byte: float


class Layers:
    """In their place: reads and writes so much memory that caches hold nothing else afterwards, as layers do."""

    def __init__(self) -> None:
        self._memory = torch.zeros(1 << 21)

    def run(self) -> None:
        self._memory.add_(1.0)


def talk(own: Communicator) -> DeviceTalk:
    """Both devices call it."""
    found = {size: _at_size(own, torch.ones(size)) for size in (SMALL, LARGE)}
    message, send, receive, exchange, gather, summed = map(_fitted, found[SMALL], found[LARGE])
    return DeviceTalk(message, send, receive, exchange, gather, summed, _adding())


def _fitted(few_s: float, many_s: float) -> Handling:
    few, many = 4.0 * SMALL, 4.0 * LARGE
    per_byte = max(0.0, (many_s - few_s) / (many - few))
    return Handling(max(0.0, few_s - per_byte * few), per_byte)


def _at_size(own: Communicator, tensor: Tensor) -> Sequence[float]:
    layers = Layers()
    rounds = [_round(own, tensor, layers) for _ in range(TURNS + 1)]
    return [lowest(taken) for taken in zip(*rounds[1:], strict=True)]


def _round(own: Communicator, tensor: Tensor, layers: Layers) -> tuple[float, ...]:
    other = 1 - own.rank
    _meet(own, layers)
    begin = time.perf_counter()
    for turn in BOTH:  # there and back
        if turn == own.rank:
            own.send([tensor], other, _TAG)
        else:
            own.receive(other, _TAG)
    message_s = (time.perf_counter() - begin) / 2
    own.finish()
    _meet(own, layers)
    send_s = _seconds(lambda: own.send([tensor], other, _TAG + 1))
    _meet(own, layers)
    receive_s = _seconds(lambda: own.receive(other, _TAG + 1))
    own.finish()
    _meet(own, layers)
    shapes = [tensor.shape, tensor.shape]
    exchange_s = _seconds(lambda: torch.cat(own.gather(tensor, BOTH, shapes)))
    layers.run()
    begin = time.perf_counter()
    flat = torch.zeros_like(tensor)
    flat.copy_(tensor)
    gather_s = time.perf_counter() - begin
    _meet(own, layers)
    sum_s = _seconds(lambda: own.begin_sum(flat, BOTH).wait())
    return message_s, send_s, receive_s, exchange_s, gather_s, sum_s


def _meet(own: Communicator, layers: Layers) -> None:
    """Both have computed something, and go on at the same time."""
    layers.run()
    own.add_up(torch.zeros(1), BOTH)


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _adding() -> float:
    """Seconds a byte of adding gradients to others, beyond what caches hold."""
    total, more = torch.zeros(4 * LARGE), torch.ones(4 * LARGE)
    return lowest([_seconds(lambda: total.add_(more)) for _ in range(8)]) / total.nbytes


def lowest(seconds: Sequence[float]) -> float:
    """The lowest but for a tenth of them: what else the machine does only ever adds, and there are lucky ones."""
    return sorted(seconds)[len(seconds) // 10]
