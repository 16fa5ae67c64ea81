"""What processes take of this machine, by /proc: memory, descriptors, time, and who has come from whom."""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Footprint", "Known", "cpu_seconds", "descendants", "footprint", "still_there"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Known = tuple[int, str]  # a process, and when it was started: its number alone may come again


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process at one time."""

    memory_bytes: int  # resident
    descriptors: int


def footprint(pid: int) -> Footprint:
    """Raises OSError when the process is gone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Footprint(pages * _PAGE_BYTES, len(os.listdir(f"/proc/{pid}/fd")))


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, the kernel for it included; 0 when it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields is not None else 0.0


def descendants(pid: int) -> set[Known]:
    """The processes that have come from this one, and from those, and live."""
    children: dict[int, list[Known]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(int(name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append((int(name), fields[19]))
    found, left = set[Known](), [pid]
    while left:
        for child in children.get(left.pop(), ()):
            found.add(child)
            left.append(child[0])
    return found


def still_there(known: set[Known]) -> set[Known]:
    """Who of these lives; who has ended and waits for its parent to look does not."""
    living = {pid: fields for pid, _ in known if (fields := _stat(pid)) is not None and fields[0] not in "ZX"}
    return {(pid, start) for pid, start in known if pid in living and living[pid][19] == start}


def _stat(pid: int) -> list[str] | None:
    """The fields from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
