"""What is of one kind: names that differ in numbers only, and the wires between two such kinds."""

import re

from gradtide.topology.model import Link
from gradtide.topology.units import format_bytes_per_s

__all__ = ["name_kind", "wire_kind", "wire_kinds"]

NUMBERS = re.compile(r"[-_]?\d+(?:-\d+)*$")


def name_kind(name: str) -> str:
    """The last part of a name, without its number.

    >>> name_kind("host3.nic0"), name_kind("leaf12"), name_kind("gpu1-0-3"), name_kind("mlx5_0")
    ('nic', 'leaf', 'gpu', 'mlx5')
    """
    last = name.rpartition(".")[2]
    return NUMBERS.sub("", last) or last


def wire_kind(link: Link) -> str:
    """The kinds at both ends of a link, whichever way it goes: gpu-nic, leaf-spine."""
    return "-".join(sorted((name_kind(link.source), name_kind(link.target)), key=_from_inside))


def _from_inside(kind: str) -> tuple[int, str]:
    """GPUs first, then what is further out, so that a wire's kind reads as a message goes."""
    order = ("gpu", "nvswitch", "pcie", "switch", "cpu", "nic", "leaf", "spine", "core")
    return (order.index(kind) if kind in order else len(order), kind)


def wire_kinds(links: tuple[Link, ...]) -> dict[str, list[int]]:
    """The numbers of the links of each kind; where wires of one kind differ in speed, each speed is a kind."""
    found: dict[str, dict[float, list[int]]] = {}
    for number, link in enumerate(links):
        rate = link.bytes_per_s * link.count
        found.setdefault(wire_kind(link), {}).setdefault(rate, []).append(number)
    kinds: dict[str, list[int]] = {}
    for kind, by_rate in found.items():
        for rate, numbers in by_rate.items():
            speed = format_bytes_per_s(float(f"{rate:.4g}"))
            kinds.setdefault(kind if len(by_rate) == 1 else f"{kind} ({speed})", []).extend(numbers)
    return kinds
