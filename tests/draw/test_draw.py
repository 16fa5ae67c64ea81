import itertools
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from gradtide.draw import draw_sizes, draw_topology
from gradtide.draw.curves import lines_of
from gradtide.draw.layout import lay_out
from gradtide.draw.sizes import winning_regions
from gradtide.draw.topology import is_cluster
from gradtide.errors import OutputError, ScheduleError
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import PRESETS, preset

WHOLE = [known.example for known in PRESETS if not is_cluster(preset(known.example))]
NAMES = [*WHOLE, "ring:2", "ring:3", "star:2", "star:40", "ring:40",
         "ethernet-cluster:1x2@10", "ethernet-cluster:8x1@10", "ethernet-cluster:3x2@10",
         "ethernet-cluster:16x8@100"]  # fmt: skip


def scattered(seed: int) -> Topology:
    """Devices, switches and a host with random one-way links on top of a ring through all."""
    random = np.random.default_rng(seed)
    kinds = [NodeKind.DEVICE] * int(random.integers(2, 10)) + [NodeKind.SWITCH] * int(random.integers(0, 4))
    nodes = [Node(f"{kind}-{i}", kind) for i, kind in enumerate([*kinds, NodeKind.HOST])]
    names = [node.name for node in nodes]
    pairs = list(zip(names, names[1:] + names[:1], strict=True))
    pairs += [(names[a], names[b]) for a, b in random.integers(0, len(names), (12, 2)) if a != b]
    return Topology("scattered", tuple(nodes), tuple(Link(a, b, 1e9, 1e-6) for a, b in dict.fromkeys(pairs)))


TOPOLOGIES = [preset(name) for name in NAMES] + [scattered(seed) for seed in range(30)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_no_two_boxes_and_no_two_machines_overlap(topology):
    layout = lay_out(topology)
    assert set(layout.boxes) == {node.name for node in topology.nodes}
    for a, b in itertools.combinations(layout.boxes.values(), 2):
        apart = max(abs(a.x - b.x) - (a.width + b.width) / 2, abs(a.y - b.y) - (a.height + b.height) / 2)
        assert apart > 0.02, (a, b)
    frames = []
    for names in layout.machines.values():
        held = [layout.boxes[name] for name in names]
        sides = [(b.x - b.width / 2 - 0.12, b.x + b.width / 2 + 0.12) for b in held]
        heights = [(b.y - 0.28, b.y + 0.28) for b in held]
        frames.append([min(s[0] for s in sides), max(s[1] for s in sides),
                       min(h[0] for h in heights), max(h[1] for h in heights)])  # fmt: skip
    for a, b in itertools.combinations(frames, 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]


@pytest.mark.parametrize("name", [*WHOLE, "torus:4x4", "torus:3x8"])
def test_no_link_of_a_preset_passes_under_the_box_of_another_node(name):
    topology = preset(name)
    layout = lay_out(topology)
    devices = {node.name for node in topology.nodes if node.kind is NodeKind.DEVICE}
    for pair, line in lines_of(layout, [(link.source, link.target) for link in topology.links], devices).items():
        boxes = [box for node, box in layout.boxes.items() if node not in pair]
        for x, y in line:
            assert not any(abs(x - b.x) < b.width / 2 and abs(y - b.y) < b.height / 2 for b in boxes)


@pytest.mark.parametrize("name", ["torus:4x4", "torus:2x5"])
def test_a_torus_is_a_grid_of_rows_and_columns(name):
    places = {tuple(map(int, name[3:].split("-"))): box for name, box in lay_out(preset(name)).boxes.items()}
    columns, rows = ({place[axis]: box for place, box in places.items()} for axis in (1, 0))
    assert {place: (box.x, box.y) for place, box in places.items()} == {
        (row, column): (columns[column].x, rows[row].y) for row in rows for column in columns
    }
    assert [columns[at].x for at in sorted(columns)] == sorted({box.x for box in columns.values()})
    assert [rows[at].y for at in sorted(rows)] == sorted({box.y for box in rows.values()}, reverse=True)


def test_names_like_places_without_the_wires_of_a_grid_are_no_grid():
    torus = preset("torus:3x3")
    assert lay_out(torus).loops
    assert not lay_out(replace(torus, links=(*torus.links, Link("gpu0-0", "gpu1-1", 1e9, 1e-6)))).loops


def test_every_colour_of_an_svg_has_a_dark_form(tmp_path):
    draw_topology(preset("pcie-4gpu"), tmp_path / "it.svg", {("gpu0", "switch"): 1e6})
    _, dark = re.split(r"@media \(prefers-color-scheme: dark\)", (tmp_path / "it.svg").read_text())
    rules, _, drawn = dark.partition("</style>")
    changed = dict(re.findall(r'style\*="((?:fill|stroke): #\w{6})"\]\{\w+:(#\w{6})!important', rules))
    assert set(re.findall(r"(?:fill|stroke): #\w{6}", drawn)) == set(changed)
    assert "svg{fill:#ebedef}" in rules  # text, which has no colour of its own
    assert changed["fill: #ffffff"] == "#17191c"


def texts_of(path) -> list[str]:
    """matplotlib writes each text of an SVG as a comment before its glyphs."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_the_drawing_names_every_node_and_the_busiest_link(tmp_path):
    loads = {("gpu0", "switch"): 120e6, ("switch", "gpu1"): 40e6}
    draw_topology(preset("pcie-4gpu"), tmp_path / "it.svg", loads, title="ring", note="15 ms")
    texts = texts_of(tmp_path / "it.svg")
    assert {"gpu0", "gpu1", "gpu2", "gpu3", "cpu", "switch", "ring", "15 ms"} <= set(texts)
    assert "busiest link: gpu0 → switch, 120 MB in 7.5 ms" in texts


def test_the_busiest_link_is_the_one_busy_for_longest_not_the_one_with_most_bytes(tmp_path):
    loads = {("host0.nic", "ethernet"): 100e6, ("host0.gpu0", "host0.pcie"): 300e6}
    draw_topology(preset("ethernet-cluster:2x1@10"), tmp_path / "it.svg", loads)
    assert any(text.startswith("busiest link: host0.nic → ethernet") for text in texts_of(tmp_path / "it.svg"))


def test_equal_pictures_have_equal_bytes_and_png_is_drawn_too(tmp_path):
    for name in ("a.svg", "b.svg", "a.png"):
        draw_topology(preset("ring:4"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_wrong_outputs_and_wrong_traffic_are_refused(tmp_path):
    with pytest.raises(OutputError, match=r"must end in \.svg, \.png, \.pdf"):
        draw_topology(preset("ring:4"), tmp_path / "it.docx")
    with pytest.raises(OutputError, match="No such file or directory"):
        draw_topology(preset("ring:4"), tmp_path / "no" / "it.svg")
    with pytest.raises(ScheduleError, match="from gpu0 to gpu2, which the topology has not"):
        draw_topology(preset("ring:4"), tmp_path / "it.svg", {("gpu0", "gpu2"): 1.0})


SIZES = [10.0**k for k in range(3, 10)]
SECONDS = {"tree": [1e-5 + 4 * s / 1e10 for s in SIZES], "ring": [3e-5 + 2 * s / 1e10 for s in SIZES]}


def test_regions_meet_at_the_crossing():
    regions = winning_regions(SIZES, SECONDS)
    assert [region.name for region in regions] == ["tree", "ring"]
    assert regions[0].from_bytes == SIZES[0]
    assert regions[-1].to_bytes == SIZES[-1]
    assert regions[0].to_bytes == regions[1].from_bytes
    assert 0.7e5 < regions[0].to_bytes < 1.4e5  # 2e-5 s / (2 / 1e10 s a byte) = 1e5 bytes


def test_a_strategy_without_a_time_at_a_size_can_not_win_there(tmp_path):
    seconds = {**SECONDS, "late": [float("nan")] * 5 + [1e-6, 1e-6]}
    assert [region.name for region in winning_regions(SIZES, seconds)] == ["tree", "ring", "late"]
    draw_sizes(tmp_path / "it.svg", SIZES, seconds, title="sizes")


def test_the_plot_names_winners_crossings_and_the_bound(tmp_path):
    draw_sizes(tmp_path / "it.svg", SIZES, SECONDS, [s / 1e10 for s in SIZES], title="box: all_reduce")
    texts = texts_of(tmp_path / "it.svg")
    assert {"tree", "lower bound", "box: all_reduce", "1 MB", "10 ms"} <= set(texts)
    assert any(text.startswith("ring from 1") for text in texts)


@pytest.mark.parametrize(
    ("sizes", "seconds", "bound", "answer"),
    [
        ([1e3], {"ring": [1.0]}, None, "at least two sizes"),
        ([2e3, 1e3], {"ring": [1.0, 2.0]}, None, "increasing"),
        ([1e3, 2e3], {"ring": [1.0]}, None, "ring has 1 times for 2 sizes"),
        ([1e3, 2e3], {"ring": [1.0, 2.0]}, [1.0], "the bound has 1 times for 2 sizes"),
        ([1e3, 2e3], {"ring": [float("inf"), 2.0]}, None, "at least one strategy"),
    ],
)
def test_a_plot_of_nothing_is_refused(sizes, seconds, bound, answer, tmp_path):
    with pytest.raises(ScheduleError, match=answer):
        draw_sizes(tmp_path / "it.svg", sizes, seconds, bound)


def test_every_process_draws_the_same_bytes(tmp_path):
    import os
    import subprocess

    code = "import sys, pathlib, gradtide.draw as draw, gradtide.topology.presets as presets\n"
    code += "draw.draw_topology(presets.preset('ring:4'), pathlib.Path(sys.argv[1]))"
    for seed in ("1", "2"):  # of the order in which sets of texts are walked
        command = [sys.executable, "-c", code, str(tmp_path / f"{seed}.svg")]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=120)
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()


def test_drawing_code_does_not_load_matplotlib_until_it_draws():
    import subprocess

    code = "import sys, gradtide.draw, gradtide.draw.timeline; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
