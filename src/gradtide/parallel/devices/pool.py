"""Devices: CUDA ones where there are any, otherwise logical CPU devices that run side by side, a thread each."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Self

import torch

from gradtide.errors import ConfigError, DeviceError
from gradtide.processes.malloc import keep_freed_memory

__all__ = ["Device", "DevicePool", "Meeting", "find_devices"]

MEETING_S = 600.0  # a device that has not come to a meeting by then is taken for stuck


@dataclass(frozen=True, slots=True)
class Device:
    """A place that computes. Several logical CPU devices share one memory but never a parameter."""

    index: int
    name: str
    torch_device: torch.device


def find_devices(wanted: int | str | torch.device | Sequence[str]) -> tuple[Device, ...]:
    """Finds the devices to compute on, in the order given.

    `2` or `"2"`: the first two CUDA devices, or two logical CPU devices; `"cuda:0,cuda:1"`, or a list: just these.
    Raises DeviceError for one that is unknown, missing, or named twice.
    """
    if isinstance(wanted, int) or (isinstance(wanted, str) and wanted.strip().lstrip("-").isdigit()):
        names = _first(int(wanted))
    else:
        listed = str(wanted).split(",") if isinstance(wanted, str | torch.device) else wanted
        names = [str(name).strip() for name in listed]
    devices = tuple(Device(index, name, _torch_device(name)) for index, name in enumerate(names))
    if len(set(names)) < len(names):
        raise DeviceError(f"a device is named twice in {','.join(names)}; name each once")
    return devices


def _first(count: int) -> list[str]:
    if count < 1:
        raise DeviceError(f"{count} devices; ask for 1 or more")
    cuda = torch.cuda.device_count()
    if 0 < cuda < count:
        raise DeviceError(f"{count} devices asked for, but this machine has {cuda} CUDA devices")
    return [f"{'cuda' if cuda else 'cpu'}:{index}" for index in range(count)]


def _torch_device(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise DeviceError(f"unknown device {name!r}; use a number, cpu:0, cpu:1, ... or cuda:0, cuda:1, ...")
    if kind == "cpu":
        return torch.device("cpu")
    if int(number or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"no device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; give a number, as 2"
        )
    return torch.device("cuda", int(number or 0))


class Meeting:
    """Where the devices' threads exchange values in the middle of a step."""

    def __init__(self) -> None:
        self._slots: list[Any] = []
        self.waited_s: list[float] = []  # of each device, since it was opened
        self._barrier = threading.Barrier(1)

    def open(self, parties: int) -> None:
        """Says how many devices take part from now on."""
        if self._barrier.parties != parties or self._barrier.broken:
            self._slots, self._barrier = [None] * parties, threading.Barrier(parties, timeout=MEETING_S)
        self.waited_s = [0.0] * parties

    def exchange(self, index: int, value: Any) -> list[Any]:
        """Hands in one device's value and returns everybody's, in the order of the devices."""
        came_s = time.perf_counter()
        self._slots[index] = value
        self._barrier.wait()
        everybody = list(self._slots)
        self._barrier.wait()
        self.waited_s[index] += time.perf_counter() - came_s
        return everybody

    def cancel(self) -> None:
        """Lets nobody wait for a device that has failed."""
        self._barrier.abort()


def _autocast_around(work: Callable[[int], Any], kinds: set[str]) -> Callable[[int], Any]:
    """The same work under the caller's torch.autocast, which other threads would not know of."""
    entered = [kind for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
    if not entered:
        return work
    dtypes, cached = [torch.get_autocast_dtype(kind) for kind in entered], torch.is_autocast_cache_enabled()

    def casting(index: int) -> Any:
        with ExitStack() as stack:
            for kind, dtype in zip(entered, dtypes, strict=True):
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cached))
            return work(index)

    return casting


class DevicePool:
    """One thread for each of the `devices` that `find_devices` gave. Use it in a `with`, or close it.

    On CPU each computes with its part of the cores, so that the devices run side by side.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        if not isinstance(devices, Sequence) or any(isinstance(device, str | int) for device in devices):
            raise ConfigError(f"DevicePool: {devices!r} were not looked up; say DevicePool(gradtide.find_devices(2))")
        self.devices = tuple(devices)
        self.meeting = Meeting()
        self.seconds = [0.0] * len(devices)  # that each worked in the last run, without waiting for others in it
        self._threads_before = torch.get_num_threads()
        keep_freed_memory()
        self._done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._todo: list[SimpleQueue[Callable[[int], Any] | None]] = [SimpleQueue() for _ in devices]
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), name=f"gradtide {device.name}", daemon=True)
            for device in devices
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[int], Any], count: int | None = None) -> list[Any]:
        """Runs work(index) for each of the first `count` devices (all, if left out) at once; returns the results in
        order. Raises what the first of them raised that failed."""
        count = len(self.devices) if count is None else count
        if count == 1 == len(self.devices):
            return [work(0)]  # one device needs no other thread, and computes with all cores
        self.meeting.open(count)
        casting = _autocast_around(work, {device.torch_device.type for device in self.devices})
        for todo in self._todo[:count]:
            todo.put(casting)
        results: list[Any] = [None] * count
        failures: list[BaseException] = []
        for _ in range(count):
            index, results[index], failure = self._done.get()
            if failure is not None:
                self.meeting.cancel()
                failures.append(failure)
        if failures:
            raise next((f for f in failures if not isinstance(f, threading.BrokenBarrierError)), failures[0])
        return results

    def _serve(self, device: Device) -> None:
        if device.torch_device.type == "cpu":
            torch.set_num_threads(max(1, self._threads_before // len(self.devices)))
        while (work := self._todo[device.index].get()) is not None:
            began_s = time.perf_counter()
            try:
                result = work(device.index)
                self.seconds[device.index] = time.perf_counter() - began_s - self.meeting.waited_s[device.index]
                self._done.put((device.index, result, None))
                del result
            except BaseException as failure:
                self._done.put((device.index, None, failure))
            del work  # an idle thread must not keep a batch alive

    def close(self) -> None:
        """Ends the threads. One that is deep inside a kernel is left to end by itself."""
        self.meeting.cancel()
        for todo in self._todo:
            todo.put(None)
        for thread in self._threads:
            thread.join(timeout=0.5)
        torch.set_num_threads(self._threads_before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
