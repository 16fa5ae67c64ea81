"""gradtide plan --sizes: which strategy wins from which size on."""

import json as json_text
from pathlib import Path
from typing import Any

from gradtide.cli.table import tell_written
from gradtide.draw.sizes import draw_sizes, winning_regions
from gradtide.errors import ConfigError
from gradtide.schedule.bound import bound
from gradtide.schedule.explain import short_size
from gradtide.schedule.plan import request_for, seconds_of_each
from gradtide.schedule.request import Request
from gradtide.topology.model import Topology
from gradtide.topology.units import parse_size_range

__all__ = ["show_sizes"]


def show_sizes(wired: Topology, sizes: str, asked: tuple[Any, ...], json: bool, output: Path | None) -> None:
    """Prints who wins where, and draws the times over the sizes if a file is named."""
    low, high = parse_size_range(sizes)
    if low < 1 or low == high:
        raise ConfigError("--sizes must go from one byte or more to a larger size, as 4KB..1GB does")
    collective, devices, root = asked

    def request_of(size_bytes: int) -> Request:
        return request_for(wired, size_bytes, collective, devices, root)

    steps = _doubling(low, high)
    seconds = seconds_of_each(request_of, steps)
    lower = bound(request_of(high)).seconds
    regions = winning_regions(steps, seconds)
    if output:
        bounds = [lower * size / high for size in steps]
        draw_sizes(output, steps, seconds, bounds, title=f"{collective} on {wired.name}")
    if json:
        found = [{"name": r.name, "from_bytes": r.from_bytes, "to_bytes": r.to_bytes} for r in regions]
        data = {"bound_seconds_per_byte": lower / high, "winners": found, "sizes": steps, "seconds": seconds}
        print(json_text.dumps(data, indent=2).replace("Infinity", "null"))
    else:
        print(f"{collective} on {wired.name}")
        for region in regions:
            print(f"  {_size(region.from_bytes):>9} to {_size(region.to_bytes):<9} {region.name}")
    tell_written(output, as_data=json)


def _doubling(low: int, high: int) -> list[int]:
    sizes = [low]
    while sizes[-1] * 2 < high:
        sizes.append(sizes[-1] * 2)
    return [*sizes, high]


def _size(size_bytes: float) -> str:
    return short_size(float(f"{size_bytes:.3g}"))
