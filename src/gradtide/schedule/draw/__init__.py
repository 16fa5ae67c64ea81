"""Pictures good enough for a lecture.

topology.py  a topology with the traffic on its links
layout.py    where each node goes
curves.py    the way a link takes between two of them
sizes.py     which strategy wins from which size on
save.py      writes a figure to a file

matplotlib is imported when something is drawn, not before: it takes longer to load than a plan takes to make.
"""

from gradtide.schedule.draw.sizes import draw_sizes
from gradtide.schedule.draw.topology import draw_topology

__all__ = ["draw_sizes", "draw_topology"]
