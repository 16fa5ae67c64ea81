"""Where a job's workers go: pure. Workers fill nodes one after the other, so that those of a node share its
memory; what dies with a node goes where there is room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradtide.errors import ConfigError

__all__ = ["NodeRoom", "place_workers", "room_on", "slots_of"]


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node, and how many workers it takes in all."""

    name: str
    slots: int


def slots_of(offered: int, workers_per_node: int | None, workers: int, nodes: int) -> int:
    """How many workers a node takes: what it offers (0: it leaves that to us; -1: none), and never more than the job's
    own limit; an even share where nobody has said anything."""
    if offered < 0:
        return 0
    even = -(-workers // max(1, nodes))
    wanted = even if workers_per_node is None else workers_per_node
    return wanted if offered == 0 else min(offered, wanted) if workers_per_node is not None else offered


def place_workers(workers: int, nodes: Sequence[NodeRoom]) -> list[str]:
    """The node of each rank: neighbours by rank are neighbours by node. ConfigError says what is missing."""
    found = [node.name for node in nodes for _ in range(node.slots)][:workers]
    if len(found) < workers:
        have = ", ".join(f"{node.name} {node.slots}" for node in nodes) or "none has joined"
        raise ConfigError(
            f"{workers} workers need {workers} slots, and there are {len(found)} ({have}); add nodes, or raise "
            "--workers-per-node"
        )
    return found


def room_on(nodes: Sequence[NodeRoom], taken: Mapping[str, int]) -> str | None:
    """The node for one more worker: the one with the most room left; of equals the first. None: no room anywhere."""
    free = {node.name: node.slots - taken.get(node.name, 0) for node in nodes}
    best = max(free, key=lambda name: free[name], default=None)
    return best if best is not None and free[best] > 0 else None
