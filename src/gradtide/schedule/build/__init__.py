"""What strategies are built from: a builder says which trees, these files do the rest.

wiring.py  who of the asked devices reaches whom, how fast and how far
rings.py   finds orders of the devices in which each reaches the next
shapes.py  chains, stars and trees over the wiring
writer.py  from trees to ops with deps
"""
