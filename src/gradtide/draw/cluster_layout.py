"""Where the parts of a cluster's picture go: a machine of each kind, and a few switches of each tier above them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradtide.draw.layout import GAP, Box, box_width
from gradtide.topology.machines import MachineKind, Tier, machine_kinds, tiers_of
from gradtide.topology.model import NodeKind, Topology

__all__ = ["ClusterLayout", "Frame", "lay_out_cluster"]

MOST_KINDS = 3  # of machines that are drawn; the others are counted
NEAREST, FURTHER = 9, 4  # switches shown of the tier next to the machines, and of the others
ROW = 0.95  # between rows of a machine
TIER = 1.5  # between tiers
APART = 0.55  # between machines
FRAME = 0.22  # between a machine's boxes and its frame


@dataclass(frozen=True, slots=True)
class Frame:
    """A machine that stands for all of its kind."""

    kind: MachineKind
    left: float
    right: float
    bottom: float
    top: float


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Boxes of the nodes that are drawn, frames of machines, rows of tiers with their height and what is left out."""

    boxes: dict[str, Box]
    frames: tuple[Frame, ...]
    rows: tuple[tuple[Tier, float], ...]
    dots: tuple[tuple[float, float], ...]  # where nodes of a row are left out
    more_kinds: int


def lay_out_cluster(topology: Topology) -> ClusterLayout:
    kinds = machine_kinds(topology)
    role = {node.name: node.kind for node in topology.nodes}
    boxes: dict[str, Box] = {}
    frames: list[Frame] = []
    left = 0.0
    own_nics = _devices_have_nics(topology, role)
    for kind in kinds[:MOST_KINDS]:
        placed, wide = _machine(kind, role, left, own_nics)
        boxes |= placed
        right = left + wide + 2 * FRAME
        low = min(box.y for box in placed.values()) - 0.17 - FRAME
        frames.append(Frame(kind, left, right, low, 0.17 + FRAME))
        left = right + APART
    width = left - APART
    rows, dots = _tiers(topology, boxes, width)
    return ClusterLayout(boxes, tuple(frames), tuple(rows), tuple(dots), max(0, len(kinds) - MOST_KINDS))


def _devices_have_nics(topology: Topology, role: dict[str, NodeKind]) -> bool:
    """Whether devices are wired to NICs themselves, not through a switch."""
    ends = ({role[link.source], role[link.target]} for link in topology.links)
    return any(pair == {NodeKind.DEVICE, NodeKind.NIC} for pair in ends)


def _machine(kind: MachineKind, role: dict[str, NodeKind], left: float, own_nics: bool) -> tuple[dict[str, Box], float]:
    """The boxes, and how wide they are together: NICs in the top row, and below them what they are wired to.

    That are the devices, if they have NICs of their own, and else the switches: so wires go from row to row.
    """
    rows: dict[int, list[str]] = defaultdict(list)
    order = {NodeKind.NIC: 0, NodeKind.DEVICE: 1, NodeKind.SWITCH: 2, NodeKind.HOST: 3}
    if not own_nics:
        order |= {NodeKind.SWITCH: 1, NodeKind.HOST: 1, NodeKind.DEVICE: 2}
    for name in kind.nodes:
        rows[order[role[name]]].append(name)
    texts = {name: name.removeprefix(f"{kind.first}.")[:20] for name in kind.nodes}
    widths = {name: box_width(text) for name, text in texts.items()}
    spans = {row: sum(widths[n] for n in names) + GAP * (len(names) - 1) for row, names in rows.items()}
    whole = max(*spans.values(), 2.6)
    boxes: dict[str, Box] = {}
    for depth, row in enumerate(sorted(rows)):
        names = sorted(rows[row], key=lambda name: role[name] is NodeKind.HOST)  # switches, then CPUs beside them
        step = whole / len(names)
        for at, name in enumerate(names):
            switch = role[name] is NodeKind.SWITCH
            wide = max(widths[name], min(0.6 * step, 2.2)) if switch and len(names) < 3 else widths[name]
            boxes[name] = Box(left + FRAME + step * (at + 0.5), -ROW * depth, wide, texts[name])
    return boxes, whole


def _tiers(
    topology: Topology, boxes: dict[str, Box], width: float
) -> tuple[list[tuple[Tier, float]], list[tuple[float, float]]]:
    """Adds the boxes of each tier's row; a row shows what is wired to the row below, and the tier's last."""
    near: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        near[link.target].add(link.source)
    rows: list[tuple[Tier, float]] = []
    dots: list[tuple[float, float]] = []
    tiers = tiers_of(topology)
    for at, (tier, shown) in enumerate(zip(tiers, _shown_of_all(tiers, near, set(boxes)), strict=True)):
        y = 0.17 + FRAME + TIER * (at + 1)
        rows.append((tier, y))
        slots = [*shown] if len(shown) == len(tier.nodes) else [*shown[:-1], "", shown[-1]]
        widths = [box_width(name) if name else 0.5 for name in slots]
        step = max(width / len(slots), max(widths) + GAP)
        start = width / 2 - step * (len(slots) - 1) / 2
        for place, name in enumerate(slots):
            x = start + step * place
            if name:
                boxes[name] = Box(x, y, widths[place], name)
            else:
                dots.append((x, y))
    return rows, dots


def _shown_of_all(tiers: Sequence[Tier], near: Mapping[str, set[str]], boxes: set[str]) -> list[list[str]]:
    """Of each tier those that are drawn; what is wired to nothing that is drawn is not."""
    drawn = set(boxes)
    for at, tier in enumerate(tiers):
        drawn |= set(_shown(tier, near, drawn, NEAREST if at == 0 or len(tier.nodes) <= NEAREST else FURTHER))
    while alone := {name for name in drawn - boxes if not near[name] & drawn}:
        drawn -= alone
    return [[name for name in tier.nodes if name in drawn] for tier in tiers]


def _shown(tier: Tier, near: Mapping[str, set[str]], drawn: set[str], most: int) -> list[str]:
    if len(tier.nodes) <= most:
        return list(tier.nodes)
    wired = [name for name in tier.nodes if near[name] & drawn][: most - 1]
    beside = [name for name in tier.nodes if name not in wired][: max(0, 3 - len(wired))]
    chosen = {*wired, *beside, tier.nodes[-1]}
    return [name for name in tier.nodes if name in chosen]
