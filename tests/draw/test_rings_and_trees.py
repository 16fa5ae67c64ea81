"""Rings and trees one by one: found in a schedule, and drawn in a colour each."""

import re

import pytest

from gradtide.draw import draw_topology
from gradtide.draw.rings_and_trees import MOST, RingOrTree
from gradtide.schedule.plan import plan
from gradtide.schedule.predict.rings_and_trees import find_rings_and_trees
from gradtide.topology.presets import preset

pytestmark = pytest.mark.quick


def ways_of(topology, strategy):
    found = plan(topology, "160MB")
    row = next(row for row in found.table if row.name == strategy)
    return found, find_rings_and_trees(row.schedule, found.request.routes)


def groups_of(path):
    """The colours of each ring's or tree's group in an SVG, and those of what is drawn above them."""
    above, *parts = re.split(r'<g id="((?:ring|tree)-\d+)">', path.read_text())
    colours = [set(re.findall(r"stroke: (#\w{6}); stroke-width: 1.6", part)) for part in parts[1::2]]
    return dict(zip(parts[::2], colours, strict=True)), set(re.findall(r"stroke: (#\w{6}); stroke-width: 2.2", above))


def test_the_rings_of_a_dgx1_are_four_in_a_colour_each(tmp_path):
    found, ways = ways_of("dgx1-v100", "rings")
    assert [(way.name, len(way.pairs), round(way.share, 3)) for way in ways] == [
        ("ring 1", 8, 0.333), ("ring 2", 8, 0.333), ("ring 3", 8, 0.167), ("ring 4", 8, 0.167)
    ]  # fmt: skip
    for way in ways:  # each of the eight sends to one, and comes back to itself
        onwards, at = dict(way.pairs), "gpu1"
        for _ in range(8):
            at = onwards.pop(at)
        assert (at, onwards) == ("gpu1", {})
    found.draw(tmp_path / "it.svg", "rings")
    groups, above = groups_of(tmp_path / "it.svg")
    assert list(groups) == ["ring-1", "ring-2", "ring-3", "ring-4"]
    assert all(len(colours) == 1 for colours in groups.values())
    assert above == set.union(*groups.values())
    assert len(above) == 4


def test_a_tree_leads_from_everybody_to_where_it_adds_up():
    _, ways = ways_of("dgx-a100", "halving-doubling")
    assert sorted(way.root for way in ways) == [f"gpu{number}" for number in range(8)]
    for way in ways:
        onwards = dict(way.pairs)
        assert len(onwards) == len(way.pairs) == 7
        for at in onwards:
            for _ in range(8):
                at = onwards.get(at, at)
            assert at == way.root
    assert sum(way.share for way in ways) == pytest.approx(1)


def test_of_more_trees_than_a_picture_holds_it_says_what_the_others_carry(tmp_path):
    trees = [RingOrTree(f"tree {number}", 0.05, (("gpu0", "gpu1"),), root="gpu1") for number in range(1, 21)]
    draw_topology(preset("ring:3"), tmp_path / "it.svg", {}, ways=trees)
    groups, _ = groups_of(tmp_path / "it.svg")
    assert list(groups) == [f"tree-{number}" for number in range(1, MOST + 1)]
    assert "; 8 more carry 40 %" in (tmp_path / "it.svg").read_text()
