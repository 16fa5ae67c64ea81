"""Packs trees into a network so that its wires are used as well as they can be.

network.py       who can send to whom, and which wires that takes
trees.py         trees as arrays, and which of them a collective takes
arborescence.py  minimum arborescences, many at a time
price.py         the cheapest trees at given prices of the wires
linear.py        linear programmes through HiGHS
generate.py      column generation: the best packing and its certificate
shallow.py       the same with flat trees, and slack where it costs least
pieces.py        a packing cut into pieces of equal size
machines.py      trees that are alike, where machines are
whole.py         whole trees of equal weight that fit the wires
side_by_side.py  unit trees that share wires fairly, with a promise of their time
timetable.py     which piece goes over which wire when
"""
