"""The time that no layout's step can beat, on these devices and wires. It is the largest of

- all that must be computed, each sample once, over the speed of all devices together;
- the way of one sample forward along the longest chain of units and back again, each unit cut as finely as it can be,
  on the fastest device;
- where one device is too slow or too small to do it all: bytes that must leave some device, over all wires out of them:
  what crosses the narrowest boundary between two stages, or the gradients of all parameters (copies), or the smallest
  value (shards).
"""

import math

from gradtide.schedule.step.choice.states import UnitLinks
from gradtide.schedule.step.choice.wires import StepDevices
from gradtide.schedule.step.costs import UnitCost

__all__ = ["least_seconds"]


def least_seconds(links: UnitLinks, devices: StepDevices, samples: int) -> float:
    """No layout takes less."""
    units = links.costs.units
    computed = sum(unit.forward.of(samples) + unit.backward.of(samples) for unit in units)
    updated = sum(unit.update_s for unit in units if unit.trained_bytes)
    alone = computed / max(devices.speeds) if _fits_alone(links, devices) else math.inf
    together = max((computed + updated) / sum(devices.speeds), _moved(links, devices, samples))
    return max(min(alone, together), _longest_way(links, devices))


def _fits_alone(links: UnitLinks, devices: StepDevices) -> bool:
    """Whether some device can hold all parameters, gradients and optimizer state."""
    held = sum(unit.parameter_bytes + unit.trained_bytes * (1 + unit.state_per_byte) for unit in links.costs.units)
    for (_, size), units in zip(links.costs.ties, links.costs.tied_units, strict=True):
        most = max(links.costs.units[at].state_per_byte for at in units)
        held -= size * (2 + most) * (len(units) - 1)
    return held <= max(devices.memory_bytes)


def _moved(links: UnitLinks, devices: StepDevices, samples: int) -> float:
    """Seconds of the fewest bytes that must leave devices where more than one take part."""
    if len(devices) == 1:
        return math.inf
    units, names = links.costs.units, set(devices.names)
    cuts = [_crossing(links, at) for at in range(1, len(units))]
    sizes = [_size(links, name) for name in links.read_at if name in links.read]
    gradients = sum(unit.trained_bytes for unit in units) - sum(
        size * (len(held) - 1) for (_, size), held in zip(links.costs.ties, links.costs.tied_units, strict=True)
    )
    fewest = min([*(cut * samples for cut in cuts), *(size * samples for size in sizes), max(0, gradients)])
    rate = sum(link.bytes_per_s * link.count for link in devices.topology.links if link.source in names)
    return fewest / rate if rate else 0.0


def _crossing(links: UnitLinks, at: int) -> float:
    """Of a sample: what is made before this unit and read by it or later."""
    return sum(
        _size(links, name) for name, found in links.read_at.items() if found and links.maker[name] < at <= found[-1]
    )


def _size(links: UnitLinks, name: str) -> float:
    value = links.values[name]
    return value.bytes if value.batched else 0.0


def _longest_way(links: UnitLinks, devices: StepDevices) -> float:
    """Of one sample: forward along what the last unit waits for, then back along what has gradients."""
    units = links.costs.units
    there, back = [0.0] * len(units), [-math.inf] * len(units)
    for at, unit in enumerate(units):
        before = [there[links.maker[name]] for name in unit.reads if name in links.maker]
        there[at] = max(before, default=0.0) + _finest(unit, devices, forward=True)
    back[-1] = _finest(units[-1], devices, forward=False)
    for at in reversed(range(len(units))):
        for name in units[at].reads:
            if name in links.maker and links.values[name].has_gradient:
                maker = links.maker[name]
                back[maker] = max(back[maker], back[at] + _finest(units[maker], devices, forward=False))
    return (there[-1] + max(back)) / max(devices.speeds)


def _finest(unit: UnitCost, devices: StepDevices, *, forward: bool) -> float:
    shards = max((min(way.most, len(devices)) for way in unit.ways if way.computes), default=1)
    seconds = unit.forward if forward else unit.backward
    return seconds.fixed_s + seconds.per_sample_s / shards
