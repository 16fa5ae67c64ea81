"""Pictures of large clusters: the structure once, with counts, and nothing on top of anything else."""

import itertools
import re
import time

import pytest

from clock import at_most
from gradtide.draw import draw_topology
from gradtide.draw.cluster_layout import lay_out_cluster
from gradtide.draw.hosts import draw_hosts
from gradtide.errors import ScheduleError
from gradtide.topology.machines import machine_kinds, tiers_of
from gradtide.topology.presets import preset
from gradtide.topology.what_if import degraded

NAMES = ["superpod:4", "superpod:300", "mixed:12+20", "rail:40x8x4@400", "leaf-spine:32x8x4@200/2", "fat-tree:8@100",
         "ethernet-cluster:16x8@100", "ethernet-cluster:40x1@10"]  # fmt: skip


def texts_of(path) -> list[str]:
    return re.findall(r"<!-- (.*?) -->", path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_no_two_boxes_overlap_and_each_machine_is_within_its_frame(name):
    layout = lay_out_cluster(preset(name))
    for a, b in itertools.combinations(layout.boxes.values(), 2):
        assert max(abs(a.x - b.x) - (a.width + b.width) / 2, abs(a.y - b.y) - (a.height + b.height) / 2) > 0.02, (a, b)
    for frame in layout.frames:
        for node in frame.kind.nodes:
            box = layout.boxes[node]
            assert frame.left < box.x - box.width / 2 < box.x + box.width / 2 < frame.right
            assert frame.bottom < box.y < frame.top
    for a, b in itertools.pairwise(layout.frames):
        assert a.right < b.left


@pytest.mark.parametrize("name", ["fat-tree:4@100", "fat-tree:8@100", "superpod:128", "mixed:12+20"])
def test_nothing_that_is_drawn_of_a_cluster_hangs_in_the_air(name):
    topology = preset(name)
    boxes = lay_out_cluster(topology).boxes
    drawn = [{link.source, link.target} for link in topology.links if {link.source, link.target} <= set(boxes)]
    assert set(boxes) == set.union(*drawn)


def test_the_picture_says_how_many_there_are_of_each(tmp_path):
    draw_topology(preset("superpod:128"), tmp_path / "it.svg")
    texts = texts_of(tmp_path / "it.svg")
    assert {"128 × host0 … host127", "32 × leaf", "16 × spine", "gpu0", "nic7", "leaf31"} <= set(texts)
    assert len(texts) < 80


def test_a_host_with_a_slow_nic_is_a_kind_of_its_own():
    kinds = machine_kinds(degraded(preset("superpod:64"), "host3.nic0", 0.1))
    assert [(len(kind.machines), kind.first) for kind in kinds] == [(63, "host0"), (1, "host3")]
    assert [len(kind.machines) for kind in machine_kinds(preset("mixed:2+5"))] == [5, 2]


def test_tiers_are_counted_from_the_machines_upwards():
    assert [(tier.kind, len(tier.nodes)) for tier in tiers_of(preset("superpod:300"))] == [
        ("leaf", 80), ("spine", 80), ("core", 64)
    ]  # fmt: skip


def test_the_busiest_link_of_a_cluster_is_named(tmp_path):
    loads = {("host0.nic0", "leaf0"): 100e6, ("host0.gpu0", "host0.nvswitch"): 300e6}
    draw_topology(preset("superpod:16"), tmp_path / "it.svg", loads, title="t", note="n")
    texts = texts_of(tmp_path / "it.svg")
    assert "busiest link: host0.nic0 → leaf0, 100 MB in 2 ms" in texts


@pytest.mark.slow
def test_ten_thousand_devices_are_drawn_in_seconds(tmp_path):
    start = time.process_time()
    draw_topology(preset("superpod:1250"), tmp_path / "it.svg")
    assert time.process_time() - start < at_most(6)


def test_one_large_grid_is_drawn_as_a_device_and_what_it_is_wired_to(tmp_path):
    draw_topology(preset("torus:8x8x8"), tmp_path / "it.svg")
    assert "gpu0-0-0 and what it is wired to; 505 more of 512 nodes are not drawn" in texts_of(tmp_path / "it.svg")


def test_times_over_hosts_need_a_time_and_a_bound_for_each(tmp_path):
    draw_hosts(tmp_path / "it.svg", [4, 8], [2e-3, 2.5e-3], [1e-3, 1.2e-3], ["ring", "hierarchical"], "title")
    assert {"hosts", "lower bound", "ring", "hierarchical", "title"} <= set(texts_of(tmp_path / "it.svg"))
    with pytest.raises(ScheduleError, match="two numbers of hosts"):
        draw_hosts(tmp_path / "it.svg", [4, 8], [2e-3], [1e-3, 1e-3], ["a", "b"])
