"""Pictures and timelines good enough for a lecture, from plain data: a topology, bytes a link, seconds a size.

topology.py  a topology, with the traffic on its links if given
layout.py    where each node goes
strokes.py   how links are drawn, and the legend that says so
rings_and_trees.py  one by one
cluster.py   a large cluster: a machine of each kind, the fabric, and counts
cluster_layout.py  where those go
curves.py    the way a link takes between two of them
step.py      a training step: who computes what when
sizes.py     which strategy wins from which size on
hosts.py     the time over the number of hosts
save.py      writes a figure to a file, an SVG with a dark form
html.py      what a notebook shows: tables, and pictures within a page
timeline.py  who used which link when, as a Chrome trace

matplotlib is imported when something is drawn, not before: it takes longer to load than a plan takes to make.
"""

from gradtide.draw.sizes import draw_sizes
from gradtide.draw.timeline import write_timeline
from gradtide.draw.topology import draw_topology

__all__ = ["draw_sizes", "draw_topology", "write_timeline"]
