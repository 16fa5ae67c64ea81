"""What gradtide plan prints: the table, or the same as JSON.

Written without rich, whose import takes a tenth of the second in which a plan should be there.
"""

import json
import sys

from gradtide.schedule.explain import short_seconds, short_size
from gradtide.schedule.plan import Plan

__all__ = ["json_text", "table_text", "title"]

HEADS = ("strategy", "time", "bandwidth", "× bound", "busiest link", "on the wire", "steps")
LEFT = ("strategy", "busiest link")  # columns of words; those of figures stand right
BOLD, GREEN, DIM, PLAIN = "\x1b[1m", "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


def json_text(found: Plan) -> str:
    request = found.request
    fields = ("name", "seconds", "bandwidth_seconds", "ratio", "busiest_link", "wire_bytes", "steps")
    data = {
        "topology": request.topology.name,
        "collective": request.collective,
        "size_bytes": request.size_bytes,
        "devices": request.devices,
        "bound_seconds": found.bound_seconds,
        "strategies": [{name: getattr(row, name) for name in fields} for row in found.table],
        "skipped": [{"name": name, "reason": reason} for name, reason in found.skipped.items()],
        "why": found.explain(),
    }
    return json.dumps(data, indent=2)


def table_text(found: Plan) -> str:
    """The winner first, the bound last, and below them why. A line that is too long is the terminal's to wrap."""
    rows = [HEADS, *_cells(found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    lines = [_styled(BOLD, lines[0]), _styled(GREEN, lines[1]), *lines[2:-1], _styled(DIM, lines[-1])]
    skipped = [_styled(DIM, f"{name} does not apply: {reason}.") for name, reason in found.skipped.items()]
    return "\n".join([_styled(BOLD, title(found)), *lines, "", found.explain(), *skipped])


def title(found: Plan) -> str:
    request = found.request
    among = f"{len(request.devices)} devices" if len(request.devices) > 4 else ", ".join(request.devices)
    return f"{request.collective} of {short_size(request.size_bytes)} on {request.topology.name} ({among})"


def _cells(found: Plan) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = []
    for row in found.table:
        times = (short_seconds(row.seconds), short_seconds(row.bandwidth_seconds), f"{row.ratio:.3f}")
        cells.append((row.name, *times, row.busiest_link, short_size(row.wire_bytes), str(row.steps)))
    return [*cells, ("lower bound", "", short_seconds(found.bound_seconds), "1.000", "", "", "")]


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    placed = [
        cell.ljust(width) if head in LEFT else cell.rjust(width)
        for head, cell, width in zip(HEADS, cells, widths, strict=True)
    ]
    return f" {'  '.join(placed)}".rstrip()


def _styled(style: str, text: str) -> str:
    return f"{style}{text}{PLAIN}" if sys.stdout.isatty() else text
