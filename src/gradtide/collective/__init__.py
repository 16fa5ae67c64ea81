"""Runs collectives on real tensors.

group.py        Group: join, then all_reduce, broadcast, send, ...; blocking or a handle
lane.py         work that must happen in order, now or in the background
signature.py    what a rank wants, as a text and as a number that ranks compare
reductions.py   the reductions by name, and who computes them
one_host.py     every collective between ranks of one host, through slots or in place
segments.py     tensors in memory that all ranks see
channel.py      messages from one rank to another
board.py        the meeting place in shared memory, and waiting that notices the dead and the late
kernels.py      the compiled part: atomics, copying, reducing
"""
