"""Machines that a user describes: NICs linked directly or by a switch, GPUs wired to each other or not."""

import itertools

import pytest

from gradtide.draw.curves import lines_of
from gradtide.draw.layout import lay_out
from gradtide.draw.sizes import colour_of, draw_sizes
from gradtide.topology.model import Link, Node, NodeKind, Topology

NAMES = ("alpha", "beta", "gamma")


def boxes(count, gpus, meshed, switched):
    """So many machines; each has GPUs, a CPU and a NIC on a PCIe switch, and NVLinks if meshed."""
    nodes, pairs = [], []
    for name in NAMES[:count]:
        devices = [f"{name}.gpu{number}" for number in range(gpus)]
        kinds = {"pcie": NodeKind.SWITCH, "cpu": NodeKind.HOST, "nic": NodeKind.NIC}
        nodes += [Node(device, NodeKind.DEVICE, name) for device in devices]
        nodes += [Node(f"{name}.{part}", kind, name) for part, kind in kinds.items()]
        pairs += [(f"{name}.pcie", other) for other in (*devices, f"{name}.cpu", f"{name}.nic")]
        pairs += itertools.combinations(devices, 2) if meshed else ()
    nics = [f"{name}.nic" for name in NAMES[:count]]
    nodes += [Node("ethernet", NodeKind.SWITCH)] if switched else []
    pairs += [(nic, "ethernet") for nic in nics] if switched else itertools.combinations(nics, 2)
    links = [Link(*ends, 1e9, 1e-6) for pair in pairs for ends in (pair, pair[::-1])]
    return Topology("own", tuple(nodes), tuple(links)), pairs


@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("meshed", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_own_machines_stand_side_by_side_and_no_line_crosses_another_box_or_frame(count, meshed, switched):
    topology, pairs = boxes(count, 4, meshed, switched)
    layout = lay_out(topology)
    lines = lines_of(layout, pairs, {node.name for node in topology.nodes if node.kind is NodeKind.DEVICE})
    frames = {}
    for machine, names in layout.machines.items():
        held = [layout.boxes[name] for name in names]
        inner = [line[:, 1] for pair, line in lines.items() if set(pair) <= set(names)]
        left, right = min(b.x - b.width / 2 for b in held), max(b.x + b.width / 2 for b in held)
        low = min(min(b.y for b in held) - 0.28, *(line.min() for line in inner))
        frames[machine] = left - 0.12, right + 0.12, low, max(b.y for b in held) + 0.28
    for a, b in itertools.combinations(frames.values(), 2):
        assert a[1] <= b[0] or b[1] <= a[0]
    for pair, line in lines.items():
        for end, point in zip(pair, (line[0], line[-1]), strict=True):
            box = layout.boxes[end]  # it begins at the box, not beside it
            assert abs(point[0] - box.x) < box.width / 2 + 0.1
            assert abs(point[1] - box.y) < box.height / 2 + 0.1
        others = [box for name, box in layout.boxes.items() if name not in pair]
        for x, y in line:
            assert not any(abs(x - b.x) < b.width / 2 and abs(y - b.y) < b.height / 2 for b in others), pair
            for machine, (left, right, low, high) in frames.items():
                if not any(end.startswith(machine) for end in pair):
                    assert not (left < x < right and low < y < high), (pair, machine)


def test_no_two_of_many_strategies_have_the_same_colour(tmp_path):
    seconds = {f"strategy{number}": [1.0 + number, 2.0 + number] for number in range(24)}
    draw_sizes(tmp_path / "sizes.svg", [1e3, 1e6], seconds)
    text = (tmp_path / "sizes.svg").read_text()
    colours = [colour_of(number) for number in range(24)]
    assert len(set(colours)) == 24
    assert all(colour in text for colour in colours)
