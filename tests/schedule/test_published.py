"""The table of published machines in docs/planner.md says what the planner predicts for them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gradtide.schedule.plan import plan
from gradtide.topology.formats.toml_file import parse_toml
from gradtide.topology.model import Topology
from gradtide.topology.presets import preset

PAGE = (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
GIB = 1 << 30
A100_X4 = '[[hosts]]\ncount = {}\nkind = "dgx-a100"\nnics = 4\n'
DGX1_X4 = (
    '[[hosts]]\ncount = 4\ngpus = 8\nnics = 4\nnic = "100 Gbit/s"\ninside_bandwidth = "150 GB/s"\npcie = "16 GB/s"\n'
)


def cluster(text: str) -> Topology:
    return parse_toml(text, "it", "it")


def dgx1() -> Topology:
    """With the data sheet's rate of a link, not the textbook's."""
    known = preset("dgx1-v100")
    return replace(known, links=tuple(replace(link, bytes_per_s=25e9) for link in known.links))


MACHINES = {
    "DGX-1, 6 NVLinks": (dgx1, GIB, "rings"),
    "DGX-2": (lambda: preset("dgx2"), GIB, "rings"),
    "DGX A100": (lambda: preset("dgx-a100"), 4 * GIB, "rings"),
    "DGX H100": (lambda: preset("dgx-h100"), 4 * GIB, "rings"),
    "4 DGX-1": (lambda: cluster(DGX1_X4), GIB // 2, "rings"),
    "2 HGX A100": (lambda: cluster(A100_X4.format(2)), 8 * GIB, "rings"),
    "3 HGX A100": (lambda: cluster(A100_X4.format(3)), GIB // 8, "rings"),
    "DGX A100s with 8 NICs": (lambda: cluster('[[hosts]]\ncount = 4\nkind = "dgx-a100"\n'), 8 * GIB, None),
    "4 HGX H100": (lambda: cluster("[[hosts]]\ncount = 4\n"), 8 * GIB, None),
    "2 A3 Mega": (lambda: cluster('[[hosts]]\ncount = 2\nnic = "200 Gbit/s"\n'), 8 * GIB, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_table_says_what_is_predicted(machine):
    build, size, strategy = MACHINES[machine]
    found = plan(build(), size)
    row = next(r for r in found.table if r.name == strategy) if strategy else found.best
    ranks = len(found.request.devices)
    cells = next(line for line in PAGE.splitlines() if re.match(rf"\| {machine}\b[^s]", line)).split(" | ")
    assert int(cells[1]) == ranks
    assert float(cells[2]) == pytest.approx(2 * (ranks - 1) / ranks * size / row.seconds / 1e9, rel=0.01)


def test_no_published_figure_is_above_the_prediction_or_far_below():
    """Of the strategy that a row names; 0.65 was set with the figures in view, and guards the table against slips."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| .* \| \d+ \| [\d.]+ \| ", line)]
    assert len(rows) == len(MACHINES)
    assert {row[4] for row in rows} == {"measured", "NCCL's constant"}  # what a row is compared with
    for row in rows:
        published = [float(figure) for figure in re.findall(r"[\d.]+", row[3])]
        assert all(0.65 < figure / float(row[2]) <= 1 for figure in published), row
