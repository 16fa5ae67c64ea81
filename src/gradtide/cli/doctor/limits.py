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
_OLDEST_KERNEL = (4, 14)  # the oldest that distributions with Python 3.11 come with
_CGROUPS = Path("/sys/fs/cgroup")
_MUCH_MEMORY = 1 << 60  # what a cgroup says that has no limit


@dataclass(frozen=True, slots=True)
class Limits:
    """0 where there is none, or it is not known."""

    kernel: tuple[int, int] = (0, 0)
    linux: bool = True
    shared_memory_bytes: int = 0  # the size of /dev/shm
    memory_limit_bytes: int = 0  # of the container or job
    cores_limit: float = 0.0  # of the container or job
    open_files: int = 0
    load: float = 0.0  # of the last minute


def read_limits() -> Limits:
    return Limits(
        kernel=_kernel(platform.release()),
        linux=sys.platform == "linux",
        shared_memory_bytes=_size_of("/dev/shm"),
        memory_limit_bytes=_memory_limit(_memberships()),
        cores_limit=_cores_limit(_memberships()),
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
            f"This container or job may use {limits.memory_limit_bytes / _GIB:.1f} of {memory_bytes / _GIB:.1f} GiB, "
            "and is killed beyond that: ask for more (docker run --memory, sbatch --mem), or take fewer workers."
        )
    if 0 < limits.cores_limit < cores:
        yield (
            f"This container or job may use {limits.cores_limit:g} of {cores} cores: ask for more (docker run --cpus), "
            f"or take --threads {max(1, int(limits.cores_limit))} and as few workers."
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


def _memory_limit(memberships: str, mount: Path = _CGROUPS) -> int:
    """The least of this process's cgroup and of all around it: a Slurm job's is far below the root."""
    found = [_number(folder / "memory.max") for folder in _cgroups(memberships, "", mount)]
    found += [_number(folder / "memory.limit_in_bytes") for folder in _cgroups(memberships, "memory", mount)]
    return min((int(limit) for limit in found if 0 < limit < _MUCH_MEMORY), default=0)


def _cores_limit(memberships: str, mount: Path = _CGROUPS) -> float:
    found = []
    for folder in _cgroups(memberships, "", mount):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(float(quota) / float(period))
    for folder in _cgroups(memberships, "cpu", mount):
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        found += [quota_us / period_us] if quota_us > 0 and period_us > 0 else []
    return min(found, default=0.0)


def _cgroups(memberships: str, controller: str, mount: Path) -> list[Path]:
    """The folders of a controller ("": of version 2) from this process's cgroup up to the root.

    Inside of a container the path may be the host's, which is not there: then the root is the container's.
    """
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = mount / controller
            inside = Path(path.lstrip("/"))
            return [root / inside, *(root / parent for parent in inside.parents)]
    return [mount / controller]


def _memberships() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/self/cgroup").read_text()
    return ""


def _number(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    return 0.0
