"""A layout as a line of text: "conv1..pool5 x2 | fc6..fc8 /2" is two copies of the first units, two shards of the rest.

Stages are divided by "|". Each names its first and its last unit ("a..b", or "a" alone; an end that is left out is
where the stage before ends, or the model does), then, if wanted, "x2" (copies), "/2" (shards), "recompute", and "@0,1"
(its devices; without, stages take devices one after the other). After a ";" may come the number of micro-batches and
the order: "..pool5 | fc6.. ; 8 gpipe". A block of layers ("blocks.0") is its first unit where a stage begins, and its
last where one ends.
"""

import re
from collections.abc import Sequence
from typing import cast, get_args

from gradtide.errors import ConfigError
from gradtide.schedule.step.files import check_layout
from gradtide.schedule.step.layout import Layout, Order, Stage
from gradtide.topology.wording import nearest

__all__ = ["parse_layout"]

_ORDERS = f"orders are {', '.join(get_args(Order))}"
_WORD = re.compile(r"x(?P<copies>\d+)|/(?P<shards>\d+)|@(?P<devices>\d+(?:,\d+)*)|(?P<recompute>recompute)")


def parse_layout(text: str, units: Sequence[str], micro_batches: int = 1, order: Order = "1f1b") -> Layout:
    """The layout that the text says, of a model with these units; what it does not say is as given."""
    text, _, rest = text.partition(";")
    micro_batches, order = _how(rest, micro_batches, order)
    stages: list[Stage] = []
    for number, part in enumerate(texts := text.split("|")):
        first = stages[-1].last if stages else 0
        used = 1 + max((device for stage in stages for device in stage.devices), default=-1)
        stages.append(_stage(part.strip(), units, first, used, is_last=number == len(texts) - 1))
    layout = Layout(tuple(units), tuple(stages), micro_batches, order)
    check_layout(layout)
    return layout


def _how(text: str, micro_batches: int, order: Order) -> tuple[int, Order]:
    for word in text.replace(",", " ").split():
        if word.isdigit():
            micro_batches = int(word)
        elif word in get_args(Order):
            order = cast(Order, word)
        elif word not in ("micro-batch", "micro-batches"):
            raise ConfigError(f"{word!r} is no number of micro-batches and no order; {_ORDERS}")
    return micro_batches, order


def _stage(text: str, units: Sequence[str], first: int, used: int, *, is_last: bool) -> Stage:
    words = text.split()
    if not words:
        raise ConfigError("a stage of the layout is empty; write units as 'conv1..pool5', stages divided by '|'")
    options: dict[str, str] = {}
    for word in words[1:] if not _WORD.fullmatch(words[0]) else words:
        found = _WORD.fullmatch(word)
        if found is None:
            raise ConfigError(f"{word!r} says nothing of a stage; x2 is copies, /2 shards, @0,1 devices, recompute")
        said = {name: value for name, value in found.groupdict().items() if value is not None}
        if options.keys() & said.keys():
            raise ConfigError(f"the stage {text!r} says its {next(iter(said))} twice; say it once")
        options |= said
    span = "" if _WORD.fullmatch(words[0]) else words[0]
    begin, last = _span(span, units, first, is_last=is_last)
    if begin != first:
        where = "the model begins" if first == 0 else f"the stage before it ends with {units[first - 1]}"
        raise ConfigError(
            f"the stage {text!r} begins with {units[begin]}, but {where}; it should begin with {units[first]}"
        )
    copies, shards = int(options.get("copies", 1)), int(options.get("shards", 1))
    if not copies or not shards:
        raise ConfigError(f"the stage {text!r} has 0 copies or shards; it needs 1 or more")
    devices = tuple(range(used, used + copies * shards))
    if "devices" in options:
        devices = tuple(map(int, options["devices"].split(",")))
        if len(devices) % shards or ("copies" in options and len(devices) != copies * shards):
            raise ConfigError(
                f"the stage {text!r} names {len(devices)} devices for {copies} copies of {shards} shards; "
                f"name {copies * shards}"
            )
    return Stage(begin, last, devices, shards, recompute="recompute" in options)


def _span(text: str, units: Sequence[str], first: int, *, is_last: bool) -> tuple[int, int]:
    if not text and not is_last:
        raise ConfigError("a stage that is not the last one says where it ends: '..pool5 x2'")
    begin, dots, end = text.partition("..")
    start = first if not begin else _place(begin, units, 0)
    if not text or (dots and not end):
        return start, len(units)
    last = _place(end if dots else begin, units, -1)
    if last < start:
        raise ConfigError(f"the stage {text!r} ends before it begins")
    return start, last + 1


def _place(name: str, units: Sequence[str], which: int) -> int:
    """Of a unit, or of the first (0) or last (-1) unit of a block of them."""
    found = [at for at, unit in enumerate(units) if unit == name or unit.startswith(f"{name}.")]
    if not found:
        raise ConfigError(f"the model has no unit {name!r}{nearest(name, units)}")
    return found[which]
