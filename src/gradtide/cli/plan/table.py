"""What gradtide plan prints: the table, or the same as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from gradtide.cli.table import BOLD, DIM, GREEN, styled, table_lines
from gradtide.schedule.explain import PLAN_HEADS, plan_cells
from gradtide.schedule.plan import Plan

__all__ = ["json_text", "table_text"]

MANY = 32  # devices


def json_text(found: Plan, more: Mapping[str, Any] | None = None) -> str:
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
        **(more or {}),
    }
    return json.dumps(data, indent=2)


def table_text(found: Plan) -> str:
    """The winner first, the bound last, and below them why. A line that is too long is the terminal's to wrap."""
    lines = table_lines(PLAN_HEADS, plan_cells(found.table, found.bound_seconds))
    lines = [styled(BOLD, lines[0]), styled(GREEN, lines[1]), *lines[2:-1], styled(DIM, lines[-1])]
    skipped = [styled(DIM, line) for line in _skipped(found)]
    return "\n".join([styled(BOLD, found.title), *lines, "", found.explain(), *skipped])


def _skipped(found: Plan) -> list[str]:
    """A line for each strategy that does not apply; of a large cluster one for each reason."""
    if len(found.request.devices) <= MANY:
        return [f"{name} does not apply: {reason}." for name, reason in found.skipped.items()]
    return [f"Left out: {', '.join(some)}: {reason}." for reason, some in found.left_out().items()]
