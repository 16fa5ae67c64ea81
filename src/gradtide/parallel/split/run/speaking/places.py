"""Where a split model's devices are: all of them threads of this process, or one of them this process."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import torch

from gradtide.collective import Group
from gradtide.errors import CommunicationError, GradtideError
from gradtide.parallel.devices.pool import Device, DevicePool
from gradtide.parallel.split.run.speaking.communicator import Communicator
from gradtide.parallel.split.run.speaking.processes import GroupCommunicator
from gradtide.parallel.split.run.speaking.threads import Switchboard
from gradtide.processes.malloc import keep_freed_memory

__all__ = ["DevicesPlace", "InProcess", "InThreads"]

T = TypeVar("T")
Members = Iterable[Sequence[int]]


class DevicesPlace(Protocol):
    """What the devices of this process are, and how each does its work."""

    size: int  # devices in all
    here: Sequence[int]  # those of this process

    def connect(self, exchanging: Members, summing: Members) -> list[Communicator]:
        """One for each device here."""

    def torch_device(self, device: int) -> torch.device: ...

    def run(self, work: Callable[[int], T]) -> list[T]:
        """work(number) for each device here, at once. The first that fails ends all."""

    def close(self) -> None: ...


class InThreads:
    """The devices of one process."""

    def __init__(self, devices: Sequence[Device], timeout_s: float, pool: DevicePool | None = None) -> None:
        self.size = len(devices)
        self.here: Sequence[int] = range(len(devices))
        self._devices, self._timeout_s = tuple(devices), timeout_s
        self._own = pool is None
        self._pool = DevicePool(devices) if pool is None else pool
        self._board = Switchboard(self.size, timeout_s)
        self._ended = ""  # why nothing more can be run

    def connect(self, exchanging: Members, summing: Members) -> list[Communicator]:
        return list(self._board.communicators())

    def torch_device(self, device: int) -> torch.device:
        return self._devices[device].torch_device

    def run(self, work: Callable[[int], T]) -> list[T]:
        board = self._board
        if self._ended:
            raise CommunicationError(f"this model's training has ended ({self._ended}); start it again")

        def guarded(index: int) -> T:
            try:
                return work(index)
            except BaseException as error:
                board.fail(index, error)
                raise

        try:
            return self._pool.run(guarded)
        except BaseException as error:
            if board.failure is None:  # somebody presses Ctrl-C: nobody waits for anything any longer
                board.fail(-1, error)
                self._ended = _short(error)
                raise
            first, self._ended = board.failure, _short(board.failure)
            board.failure = CommunicationError(self._ended)  # an error keeps all that was alive when it was raised
            raise first from None

    def close(self) -> None:
        if self._own:
            self._own = False
            self._pool.close()


class InProcess:
    """One device of a job: this process, with the others over a group. None: there are no others."""

    def __init__(self, group: Group | None, device: torch.device | None = None) -> None:
        keep_freed_memory()
        self._group = group
        self.size = 1 if group is None else group.size
        self.here: Sequence[int] = (0,) if group is None else (group.rank,)
        self._device = torch.device("cpu") if device is None else device
        self._communicator: Communicator | None = None
        self._ended = ""  # why nothing more can be run

    def connect(self, exchanging: Members, summing: Members) -> list[Communicator]:
        if self._group is None:
            self._communicator = Switchboard(1, 1.0).communicators()[0]
        else:
            self._communicator = GroupCommunicator(self._group, exchanging, summing)
        return [self._communicator]

    def torch_device(self, device: int) -> torch.device:
        return self._device

    def run(self, work: Callable[[int], T]) -> list[T]:
        if self._ended:
            raise CommunicationError(f"this model's training has ended ({self._ended}); start it again")
        try:
            return [work(self.here[0])]
        except BaseException as error:
            self._ended = _short(error)
            if self._communicator is not None:
                self._communicator.abort(error)
            raise

    def close(self) -> None:
        if self._communicator is not None and not self._ended:
            self._communicator.close()
        self._communicator = None


def _short(error: BaseException) -> str:
    said = (str(error).splitlines() or [""])[0]
    return said if isinstance(error, GradtideError) else f"{type(error).__name__}: {said}"
