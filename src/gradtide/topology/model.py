"""Nodes and links as frozen data: what is wired to what, how fast, how far."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Link", "Node", "NodeKind", "Topology"]


class NodeKind(StrEnum):
    """What a node can do."""

    DEVICE = "device"  # computes, holds a contribution; does not pass traffic on
    HOST = "host"  # has no contribution, but may aggregate, and passes traffic on
    SWITCH = "switch"  # only passes traffic on
    NIC = "nic"  # only passes traffic on, at the edge of a machine


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a topology."""

    name: str
    kind: NodeKind
    machine: str = ""  # the machine it is in; nodes between machines have none


@dataclass(frozen=True, slots=True)
class Link:
    """A one-way wire between two nodes, or `count` equal ones side by side."""

    source: str
    target: str
    bytes_per_s: float  # of one wire
    latency_s: float
    count: int = 1
    wire: str = ""  # links that name the same wire share its capacity (a half-duplex bus, say)


@dataclass(frozen=True, slots=True)
class Topology:
    """Who is wired to whom."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
