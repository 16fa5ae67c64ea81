"""What strategies are built from: a builder says which trees, these files do the rest.

wiring.py  who of the asked devices reaches whom, how fast and how far
rings.py   finds orders of the devices in which each reaches the next
shapes.py  chains, stars and trees over the wiring
exits.py   the ways out of each machine, and how fast they are
rails.py   trees between machines whose NICs differ, and the part of each
rail_moves.py   what is sent for a chunk of such a tree
rail_streams.py which of these trees run side by side, as streams of slices
writer.py  from trees to ops with deps
"""
