"""Clusters whose machines are alike: what one rank does, all others do turned. So is built, proven and simulated one.

turns.py       ranks on a grid whose edges meet, and turning it
seed.py        what happens to the part of the buffer that rank 0 owns
generated.py   a schedule of any size: its seed, and how to turn it; ops a rank at a time
pair_routes.py the routes between ranks as far apart, as rows of numbers
relabelling.py whether turning a cluster is an automorphism of its wiring, its routes and the schedule
folded.py      its simulation: pairs and links in classes
proof.py       its proof: the seed, and that the whole is the seed turned
grids.py       which grid a request's devices stand on
sliced.py      a schedule of many slices that are alike, and its proof: one slice of each stream
compose.py     compositions: inside a machine, between machines, between racks, at once
"""
