"""What this machine and its software are: stated with every figure."""

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Machine", "describe_machine"]

PACKAGES = ("gradtide", "torch", "numpy", "scipy", "numba")


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that a figure depends on."""

    system: str
    cpu: str
    cores: int  # those this process may use
    memory_bytes: int
    memory_free_bytes: int
    shared_memory_bytes: int  # free in /dev/shm
    python: str
    packages: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_machine() -> Machine:
    memory = _memory()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory.get("MemTotal", 0),
        memory_free_bytes=memory.get("MemAvailable", 0),
        shared_memory_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        python=sys.version.split()[0],
        packages=_versions(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _memory() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest.split()
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
