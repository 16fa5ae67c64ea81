"""What planning costs: `gradtide plan superpod:HOSTS` as a whole command, from 8 devices to 10,000."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import GradtideError

__all__ = ["HOSTS", "PlanningCost", "bench_planning", "draw"]

HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1280)
GPUS = 8
DEADLINE_S = 900.0  # of one command
# A small process runs the command and says what it took: the kernel counts a parent's memory as its child's peak.
METERED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[2:], capture_output=True, text=True, timeout=float(sys.argv[1]))
used = resource.getrusage(resource.RUSAGE_CHILDREN)
took = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1000}
print(json.dumps({"code": done.returncode, "said": done.stdout, "error": done.stderr, "took": took}))
"""


@dataclass(frozen=True, slots=True)
class PlanningCost:
    """One command: its time, and the most memory it had."""

    devices: int
    wall_s: float
    cpu_s: float
    peak_mb: float
    ratio: float  # of the best plan's time to the bound


def bench_planning(hosts: Sequence[int], size: str, tell: Callable[[str], None]) -> Iterator[PlanningCost]:
    """The smallest cluster first."""
    for count in sorted(hosts):
        tell(f"planning {count * GPUS:,} devices")
        yield _measure(count, size)


def _measure(hosts: int, size: str) -> PlanningCost:
    name, start = f"superpod:{hosts}", time.monotonic()
    command = [sys.executable, "-m", "gradtide", "plan", name, "--size", size, "--json"]
    metered = [sys.executable, "-S", "-c", METERED, str(DEADLINE_S), *command]
    done = subprocess.run(metered, capture_output=True, text=True, timeout=DEADLINE_S + 10, check=False)
    if "TimeoutExpired" in done.stderr:
        raise GradtideError(f"gradtide plan {name} took more than {DEADLINE_S:g} s; ask for fewer hosts")
    wall_s, told = time.monotonic() - start, json.loads(done.stdout)
    if told["code"]:
        raise GradtideError(f"gradtide plan {name} failed: {told['error'].strip()[-500:]}")
    ratio = min(row["ratio"] for row in json.loads(told["said"])["strategies"])
    return PlanningCost(hosts * GPUS, wall_s, told["took"]["cpu_s"], told["took"]["peak_mb"], ratio)


def draw(costs: Sequence[PlanningCost], path: Path) -> None:
    """Seconds of CPU and memory over the number of devices."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    devices = [cost.devices for cost in costs]
    panels = (
        ("CPU seconds", [cost.cpu_s for cost in costs]),
        ("most memory, MB", [cost.peak_mb for cost in costs]),
    )
    for at, (what, values) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, 2, at)
        axes.plot(devices, values, "o-", color="#1f77b4", lw=1.6)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="devices", ylabel=what, ylim=(0, max(values) * 1.1))
        axes.set_xticks(devices[::2], [f"{count:,}" for count in devices[::2]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(color="#dddddd", lw=0.7)
    figure.suptitle("gradtide plan superpod:HOSTS --size 1GB, the whole command", fontsize=11)
    figure.savefig(path, dpi=110)
