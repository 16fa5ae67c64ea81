"""`nvidia-smi topo -m` text as a topology.

The matrix says for each pair how far apart they are: NV# (so many NVLinks), or the most distant thing that PCIe
traffic between them crosses: PIX one switch, PXB several, PHB the CPU's host bridge, NODE two host bridges of one
NUMA node, SYS the link between sockets. Those distances nest, so they give a tree (pcie_tree.py).
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from gradtide.errors import TopologyError
from gradtide.topology.formats.pcie_tree import DISTANCES, PcieLeaf, pcie_tree
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.rates import NVLINK_S, WireRates
from gradtide.topology.validate import check
from gradtide.topology.wording import nearest, shown

__all__ = ["Matrix", "looks_like_nvidia_smi", "parse_matrix", "parse_nvidia_smi"]

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # newer drivers underline the header
GPU = re.compile(r"GPU\d{1,4}")
CELL = re.compile(r"X|NV\d{1,3}|N/A|" + "|".join(DISTANCES))
SYNONYMS = {"SOC": "SYS"}  # drivers before 384
MOST_NVLINKS = 18  # of any GPU so far; more than that to all peers together means they share a switch
MOST_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class Matrix:
    """What the text says: a code for each ordered pair, and the CPUs each row is near to."""

    names: tuple[str, ...]  # as printed: GPU0, NIC0, mlx5_0
    codes: Mapping[tuple[str, str], str]  # X, NV#, N/A or a distance
    affinity: Mapping[str, str]  # the CPUs of each row that names them


def looks_like_nvidia_smi(text: str) -> bool:
    """Whether the first line that is not empty is the matrix's header."""
    first = next((line for line in ANSI.sub("", text[:20_000]).split("\n") if line.strip()), "")
    return bool(GPU.match(first.strip()))


def parse_nvidia_smi(
    text: str, origin: str, name: str, rates: WireRates | None = None, pcie: bool = True, nvswitch: bool | None = None
) -> Topology:
    """The machine as a checked topology: gpu0, gpu1, …, NICs, switches and CPUs.

    `pcie=False` leaves only NVLinks. `nvswitch` says whether the NVLinks lead to a switch; None decides by their
    number: no GPU has more than 18, so NV18 to each of seven peers must be the same 18.
    """
    rates = rates or WireRates()
    matrix = parse_matrix(text, origin)
    gpus = [n for n in matrix.names if GPU.fullmatch(n)]
    links, switches = _nvlinks(matrix, gpus, rates, nvswitch)
    nodes = [Node(_label(n), NodeKind.DEVICE, "host0") for n in gpus]
    nodes += [Node(n, NodeKind.SWITCH, "host0") for n in switches]
    if pcie:
        nics = [n for n in matrix.names if n not in gpus]
        members = [PcieLeaf(n, _label(n), matrix.affinity.get(n, "")) for n in matrix.names]
        tree_nodes, tree_links = pcie_tree(members, matrix.codes, rates)
        wired = {link.source for link in tree_links}
        nodes += [Node(n, NodeKind.NIC, "host0") for n in nics if n in wired]
        nodes += tree_nodes
        links += tree_links
    return _checked(Topology(name, tuple(nodes), tuple(links)), origin)


def _checked(topology: Topology, origin: str) -> Topology:
    try:
        return check(topology)
    except TopologyError as error:
        raise TopologyError(f"{origin}: {error}") from None


def parse_matrix(text: str, origin: str) -> Matrix:
    lines = ANSI.sub("", text).split("\n")
    start = next((i for i, line in enumerate(lines) if GPU.match(line.strip())), None)
    if start is None:
        raise TopologyError(f"{origin}: no header with GPU0 in it; expected the output of `nvidia-smi topo -m`")
    names = _header(lines[start], f"{origin}, line {start + 1}")
    codes: dict[tuple[str, str], str] = {}
    affinity: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        cells = line.split()
        if not cells or cells[0].startswith("Legend"):
            break
        where = f"{origin}, line {number}"
        row = _row(cells, names, where)
        if cells[0] in affinity:
            raise TopologyError(f"{where}: {cells[0]} has a second row; keep one")
        codes |= {(cells[0], name): code for name, code in row.items()}
        affinity[cells[0]] = _cpus(cells[len(names) + 1 :])
    _check_symmetric(names, codes, affinity, origin)
    _warn_unless_nested(names, codes, origin)
    return Matrix(names, codes, affinity)


def _header(line: str, where: str) -> tuple[str, ...]:
    """The columns up to the affinities, whose titles are words: CPU Affinity, NUMA Affinity, GPU NUMA ID."""
    names: list[str] = []
    for word in line.split():
        if word in ("CPU", "NUMA", "GPU", "Affinity"):
            break
        names.append(word)
    if len(set(names)) != len(names) or len(names) > MOST_COLUMNS:
        raise TopologyError(f"{where}: a header has each name once and at most {MOST_COLUMNS}")
    return tuple(names)


def _row(cells: list[str], names: tuple[str, ...], where: str) -> dict[str, str]:
    if cells[0] not in names:
        raise TopologyError(f"{where}: {shown(cells[0])} is no column of the header{nearest(cells[0], names)}")
    values = [SYNONYMS.get(cell, cell) for cell in cells[1 : len(names) + 1]]
    if len(values) < len(names):
        raise TopologyError(f"{where}: {cells[0]} has {len(values)} columns, but the header has {len(names)}")
    for name, value in zip(names, values, strict=True):
        if not CELL.fullmatch(value) or (value == "X") != (name == cells[0]):
            known = f"NV1, NV2, … or {', '.join(DISTANCES)}" if name != cells[0] else "X"
            raise TopologyError(f"{where}, column {name}: expected {known}, not {shown(value)}")
        if value.startswith("NV") and not (GPU.fullmatch(name) and GPU.fullmatch(cells[0])):
            raise TopologyError(
                f"{where}, column {name}: {value}, but only GPUs have NVLinks; expected a PCIe distance"
            )
    return dict(zip(names, values, strict=True))


def _cpus(cells: list[str]) -> str:
    """The CPU affinity column: "0-19,40-59"; empty where there is none."""
    return cells[0] if cells and cells[0][0].isdigit() else ""


def _check_symmetric(
    names: tuple[str, ...], codes: Mapping[tuple[str, str], str], rows: Mapping[str, str], origin: str
) -> None:
    for name in names:
        if name not in rows:
            raise TopologyError(f"{origin}: {name} is in the header but has no row; give the whole matrix")
    for (a, b), code in codes.items():
        if codes[b, a] != code:
            raise TopologyError(f"{origin}: {a} to {b} is {code}, but {b} to {a} is {codes[b, a]}; they must agree")


def _warn_unless_nested(names: tuple[str, ...], codes: Mapping[tuple[str, str], str], origin: str) -> None:
    """What is near to the same third is near to each other: distances that are not of a tree can't all be true."""
    far = {code: at for at, code in enumerate(DISTANCES)}
    for level in range(len(DISTANCES) - 1):
        near = {a: sum(1 << i for i, b in enumerate(names) if far.get(codes[a, b], len(far)) <= level) for a in names}
        for (a, c), code in codes.items():
            if far.get(code, 0) > level and (shared := near[a] & near[c]):
                b = names[(shared & -shared).bit_length() - 1]
                cells = f"{a} to {c} is {code}, but {b} to {c} is {codes[b, c]}, and {a} to {b} only {codes[a, b]}"
                text = f"{origin}: {cells}; one is wrong, and the nearer is believed: save the matrix anew"
                warnings.warn(text, stacklevel=2)
                return


def _label(name: str) -> str:
    return name.lower() if GPU.fullmatch(name) else name


def _nvlinks(matrix: Matrix, gpus: list[str], rates: WireRates, nvswitch: bool | None) -> tuple[list[Link], list[str]]:
    """The NVLinks, and the switch they lead to if they do."""
    counts = {(a, b): int(c[2:]) for (a, b), c in matrix.codes.items() if c.startswith("NV") and c != "NV0"}
    totals, most = dict.fromkeys(gpus, 0), dict.fromkeys(gpus, 0)
    for (a, _), n in counts.items():
        totals[a], most[a] = totals[a] + n, max(most[a], n)
    if nvswitch is None:
        nvswitch = max(totals.values(), default=0) > MOST_NVLINKS
    if not nvswitch:
        return [Link(_label(a), _label(b), rates.nvlink, NVLINK_S, n) for (a, b), n in counts.items()], []
    wired = [(gpu.lower(), n) for gpu, n in most.items() if n]
    links = [Link(a, "nvswitch", rates.nvlink, NVLINK_S / 2, n) for a, n in wired]
    return [*links, *(Link(k.target, k.source, k.bytes_per_s, k.latency_s, k.count) for k in links)], ["nvswitch"]
