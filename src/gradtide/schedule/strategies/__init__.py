"""One builder file a strategy; importing this package registers them all.

root.py              one device aggregates
host.py              a CPU aggregates
sharded.py           each device aggregates its part
ring.py              round one ring, or round several, one way or both
"""

from gradtide.schedule.strategies import host, ring, root, sharded

__all__ = ["host", "ring", "root", "sharded"]
