"""One builder file per strategy; `STRATEGIES` has them all by name. Each registers itself when it is imported, below.

root.py              one device aggregates
host.py              a CPU aggregates
sharded.py           each device aggregates its part
ring.py              round one ring, or round several, one way or both
tree.py              up and down one tree, or two
halving_doubling.py  exchange halves with one partner after the other
hierarchical.py      inside machines, between them, back
servers.py           parameter servers
packed_trees.py      the trees that come closest to the lower bound
composed.py          inside machines, between them and between racks at once, where machines are alike
balanced_rails.py    as much over each NIC as it is fast, where they differ or one is dead
"""

from gradtide.schedule.request import STRATEGIES
from gradtide.schedule.strategies import (  # noqa: F401
    balanced_rails,
    composed,
    halving_doubling,
    hierarchical,
    host,
    packed_trees,
    ring,
    root,
    servers,
    sharded,
    tree,
)

__all__ = ["STRATEGIES"]
