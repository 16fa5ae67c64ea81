"""A layout as JSON and back, and what a layout must be."""

import json
from pathlib import Path

from gradtide.errors import OutputError, ScheduleError
from gradtide.schedule.step.files.json_data import from_json, to_plain
from gradtide.schedule.step.layout import Layout, Stage

__all__ = ["check_layout", "layout_from_json", "layout_to_json", "save_layout"]

MARK, VERSION = "gradtide_layout", 1
MOST_MICRO_BATCHES = 1 << 20


def layout_to_json(layout: Layout) -> str:
    """One stage a line, so that a diff of two layouts reads well."""
    plain = to_plain(layout)
    stages = ",\n".join("  " + json.dumps(stage) for stage in plain.pop("stages"))
    return json.dumps({MARK: VERSION, **plain})[:-1] + f', "stages": [\n{stages}\n]}}\n'


def save_layout(layout: Layout, path: Path) -> None:
    try:
        path.write_text(layout_to_json(layout), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"can't write the layout to {path}: {error.strerror}; name another file") from None


def layout_from_json(text: str | bytes, source: str = "layout") -> Layout:
    """The layout in the text, checked; `source` (a file's name, say) opens every error."""
    layout = from_json(text, Layout, source, MARK, VERSION)
    check_layout(layout, source)
    return layout


def check_layout(layout: Layout, source: str = "layout") -> None:
    """Raises ScheduleError, in one line, unless the stages are a model's units in order, on devices that fit."""
    if not layout.units or len(set(layout.units)) != len(layout.units):
        raise ScheduleError(f"{source}: needs units of different names")
    if not 1 <= layout.micro_batches <= MOST_MICRO_BATCHES:
        raise ScheduleError(f"{source}: needs 1 to {MOST_MICRO_BATCHES} micro-batches, not {layout.micro_batches}")
    expected = 0
    for at, stage in enumerate(layout.stages):
        who = f"{source}: stage {at}"
        if stage.first != expected or not stage.first < stage.last <= len(layout.units):
            raise ScheduleError(
                f"{who}: has units {stage.first} to {stage.last - 1}, but must begin with unit {expected} and end "
                f"before unit {len(layout.units)}"
            )
        expected = stage.last
        _check_devices(stage, who)
        _check_ways(stage, layout.units, who)
    if expected != len(layout.units):
        raise ScheduleError(f"{source}: no stage has unit {layout.units[expected]}")
    _check_rows(layout, source)


def _check_devices(stage: Stage, who: str) -> None:
    devices = stage.devices
    if not devices or len(set(devices)) != len(devices) or min(devices) < 0:
        raise ScheduleError(f"{who}: needs different devices, numbered from 0")
    if stage.shards < 1 or len(devices) % stage.shards:
        raise ScheduleError(f"{who}: {len(devices)} devices can't be copies of {stage.shards} shards each")


def _check_ways(stage: Stage, units: tuple[str, ...], who: str) -> None:
    own = units[stage.first : stage.last]
    cut = [unit for unit, _ in stage.ways]
    for unit in cut:
        if unit not in own or cut.count(unit) > 1:
            raise ScheduleError(f"{who}: must say once how one of its own units is cut, not of {unit[:40]!r}")
    if cut and stage.shards == 1:
        raise ScheduleError(f"{who}: has one shard, so {cut[0]!r} can't be cut; leave out its way, or add shards")


def _check_rows(layout: Layout, source: str) -> None:
    rows = [frozenset(stage.devices) for stage in layout.stages]
    for at, row in enumerate(rows):
        for other in rows[:at]:
            if row & other and row != other:
                raise ScheduleError(
                    f"{source}: stage {at} shares device {min(row & other)} with a stage on other devices; two stages "
                    "have all devices in common or none"
                )
    used = sorted(frozenset().union(*rows))
    idle = next((at for at, device in enumerate(used) if device != at), None)
    if idle is not None:
        raise ScheduleError(f"{source}: device {idle} has no stage; number the devices from 0 without a gap")
