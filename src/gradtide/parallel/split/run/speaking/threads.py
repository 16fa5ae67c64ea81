"""Devices of one process: tensors are handed over between their threads, without a copy."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradtide.errors import PeerLost, PeerTimeout
from gradtide.parallel.split.run.speaking.communicator import Packet

__all__ = ["Switchboard", "ThreadCommunicator"]


class Switchboard:
    """Where the threads of a process meet: letters by (source, target, tag), and tables that several put things on."""

    def __init__(self, devices: int, timeout_s: float) -> None:
        self.devices, self.timeout_s = devices, timeout_s
        self.failure: BaseException | None = None  # the first one
        self._failed: int | None = None
        self._changed = threading.Condition()
        self._letters: dict[tuple[int, int, int], deque[list[Packet]]] = {}
        self._tables: dict[Any, dict[int, Any]] = {}

    def communicators(self) -> "list[ThreadCommunicator]":
        return [ThreadCommunicator(self, rank) for rank in range(self.devices)]

    def fail(self, device: int, error: BaseException) -> None:
        """Nobody waits any longer."""
        with self._changed:
            if self.failure is None:
                self.failure, self._failed = error, device
            self._letters.clear()
            self._tables.clear()
            self._changed.notify_all()

    def post(self, key: tuple[int, int, int], letter: list[Packet]) -> None:
        with self._changed:
            self._check()
            self._letters.setdefault(key, deque()).append(letter)
            self._changed.notify_all()

    def take(self, key: tuple[int, int, int]) -> list[Packet]:
        with self._changed:
            self._wait(lambda: bool(self._letters.get(key)), lambda: [key[0]], "a message")
            letters = self._letters[key]
            letter = letters.popleft()
            if not letters:
                del self._letters[key]
            return letter

    def lay(self, table: Any, device: int, thing: Any) -> None:
        with self._changed:
            self._check()
            self._tables.setdefault(table, {})[device] = thing
            self._changed.notify_all()

    def gather(self, table: Any, device: int, members: Sequence[int], what: str) -> list[Any]:
        """What all of them have laid down, once they have. The last one who has taken it clears the table."""
        with self._changed:
            there: dict[int, Any] = self._tables.setdefault(table, {})
            self._wait(
                lambda: all(member in there for member in members),
                lambda: [member for member in members if member not in there],
                what,
            )
            found = [there[member] for member in members]
            there[-1 - device] = None  # has taken it
            if all(-1 - member in there for member in members):
                self._tables.pop(table, None)
            return found

    def _wait(self, ready: Callable[[], bool], missing: Callable[[], list[int]], what: str) -> None:
        deadline_s = time.monotonic() + self.timeout_s
        while not ready():
            self._check()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                late = ", ".join(map(str, missing()))
                raise PeerTimeout(
                    f"device {late} did not come within {self.timeout_s:g} s ({what}); is its thread stuck?"
                )
            self._changed.wait(left_s)
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise PeerLost(f"device {self._failed} failed: {type(self.failure).__name__}: {self.failure}")


class ThreadCommunicator:
    """One device's end."""

    keeps_messages = False

    def __init__(self, board: Switchboard, rank: int) -> None:
        self.rank, self.size, self._board = rank, board.devices, board
        self._met: dict[Any, int] = {}  # how often, with whom

    def send(self, values: Sequence[Packet], to: int, tag: int) -> None:
        self._board.post((self.rank, to, tag), list(values))

    def receive(self, source: int, tag: int) -> list[Packet]:
        return self._board.take((source, self.rank, tag))

    def gather(self, tensor: Tensor, members: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        found: list[Tensor] = self._meet("exchange", tensor, members)()
        assert [tuple(one.shape) for one in found] == [tuple(shape) for shape in shapes], (found, shapes)
        return [one.to(tensor.device) for one in found]

    def swap(self, parts: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
        own = list(members).index(self.rank)
        found: list[list[Tensor]] = self._meet("exchange", list(parts), members)()
        return [theirs[own].to(parts[own].device) for theirs in found]

    def add_up(self, tensor: Tensor, members: Sequence[int]) -> Tensor:
        return _added(self._meet("exchange", tensor, sorted(members))(), tensor.device)

    def begin_sum(self, tensor: Tensor, members: Sequence[int], at_once: bool = False) -> "_Sum":
        """The tensor may still be read by others when it is written here: each lays down what nobody changes."""
        return _Sum(self._meet("sum", tensor.clone(), sorted(members)), tensor)

    def _meet(self, purpose: str, thing: Any, members: Sequence[int]) -> Callable[[], Any]:
        who = (purpose, tuple(sorted(members)))
        number = self._met[who] = self._met.get(who, 0) + 1
        self._board.lay((who, number), self.rank, thing)
        what = f"{'an' if purpose == 'exchange' else 'a'} {purpose} of devices {', '.join(map(str, members))}"
        return lambda: self._board.gather((who, number), self.rank, members, what)

    def finish(self) -> None:
        """What was handed over has left."""

    def close(self) -> None:
        """Nothing is left to end."""

    def abort(self, error: BaseException) -> None:
        self._board.fail(self.rank, error)


class _Sum:
    """Sums are taken when they are waited for, by each device for itself: all add in the same order."""

    def __init__(self, gather: Callable[[], list[Tensor]], into: Tensor) -> None:
        self._gather, self._into = gather, into

    def wait(self) -> None:
        parts = self._gather()
        with torch.no_grad():
            self._into.copy_(_added(parts, self._into.device))


def _added(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    with torch.no_grad():
        total = parts[0].detach().to(device, copy=True)
        for part in parts[1:]:
            total += part.to(device)
    return total
