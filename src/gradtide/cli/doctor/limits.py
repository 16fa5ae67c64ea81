"""What the machine and its container allow, and what to do where that is too little."""

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Limits", "busy_line", "read_limits", "what_stands_in_the_way"]

_GIB = 2**30
_LEAST_SHARED_BYTES = _GIB
_LEAST_FILES = 4096
_OLDEST_KERNEL = (
    4,
    14,
)  # the oldest that distributions with Python 3.11 come with
_MUCH_MEMORY = 1 << 60  # what a cgroup says that has no limit


@dataclass(frozen=True, slots=True)
class Limits:
    """0 where there is none, or it is not known."""

    kernel: tuple[int, int] = (0, 0)
    linux: bool = True
    shared_memory_bytes: int = 0  # the size of /dev/shm
    memory_limit_bytes: int = 0  # of the container
    cores_limit: float = 0.0  # of the container
    open_files: int = 0
    load: float = 0.0  # of the last minute


def read_limits() -> Limits:
    return Limits(
        kernel=_kernel(platform.release()),
        linux=sys.platform == "linux",
        shared_memory_bytes=_size_of("/dev/shm"),
        memory_limit_bytes=_memory_limit(Path("/sys/fs/cgroup")),
        cores_limit=_cores_limit(Path("/sys/fs/cgroup")),
        open_files=_open_files(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )


def what_stands_in_the_way(limits: Limits, cores: int, memory_bytes: int) -> Iterator[str]:
    """Each with what to do about it."""
    if not limits.linux:
        yield "gradtide's planner works here (gradtide plan and topology); training, the store and jobs need Linux."
        return
    if (0, 0) < limits.kernel < _OLDEST_KERNEL:
        yield f"Linux {limits.kernel[0]}.{limits.kernel[1]} is older than gradtide is tried on; take 4.14 or newer."
    if limits.shared_memory_bytes < _LEAST_SHARED_BYTES:
        has = f"{limits.shared_memory_bytes / _GIB:.2f} GiB" if limits.shared_memory_bytes else "nothing"
        yield (
            f"/dev/shm has {has}: workers with DataLoader processes need more; docker run --shm-size 8g, or "
            "mount -o remount,size=8g /dev/shm."
        )
    if 0 < limits.memory_limit_bytes < memory_bytes:
        yield (
            f"This container may use {limits.memory_limit_bytes / _GIB:.1f} of {memory_bytes / _GIB:.1f} GiB: what "
            "goes beyond is killed without a word; give it more (docker run --memory), or take fewer workers."
        )
    if 0 < limits.cores_limit < cores:
        yield (
            f"This container may use {limits.cores_limit:g} of {cores} cores: give it more (docker run --cpus), or "
            f"take --threads {max(1, int(limits.cores_limit))} and as few workers."
        )
    if 0 < limits.open_files < _LEAST_FILES:
        yield f"A process may open {limits.open_files} files: many workers or servers need more; say ulimit -n 65536."
    if line := busy_line(limits.load, cores):
        yield line


def busy_line(load: float, cores: int) -> str:
    """What figures of time are worth on this machine now; "" if nothing else runs."""
    if load <= max(0.5, cores / 4):
        return ""
    return f"The machine is busy (load {load:.1f} on {cores} cores): times will be longer than on a quiet one."


def _kernel(release: str) -> tuple[int, int]:
    numbers = release.split(".")[:2]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(n.isdecimal() for n in numbers) else (0, 0)


def _size_of(folder: str) -> int:
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize
    return 0


def _open_files() -> int:
    with contextlib.suppress(ImportError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 0 if soft == resource.RLIM_INFINITY else soft
    return 0


def _memory_limit(cgroup: Path) -> int:
    limits = [_number(cgroup / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min((int(limit) for limit in limits if 0 < limit < _MUCH_MEMORY), default=0)


def _cores_limit(cgroup: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return float(quota) / float(period)
    quota_us, period_us = _number(cgroup / "cpu/cpu.cfs_quota_us"), _number(cgroup / "cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us > 0 and period_us > 0 else 0.0


def _number(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    return 0.0
