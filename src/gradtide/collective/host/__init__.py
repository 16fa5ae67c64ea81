"""What the ranks of one host share, and every collective through it.

prepare.py        tensors as the collectives take them, and results where they were asked for
signature.py      what a rank wants, as a text and as a number that ranks compare
waiting.py        how long a wait lasts, and the words for who is late, has left or is lost
rank_watch.py     who is lost and who is late, in a job on several hosts
board.py          the meeting place in shared memory, and waiting that notices the dead and the late
extents.py        places in tensors before their addresses are known
handing.py        what the ranks of a host hand each other at meetings, as data
segments.py       tensors in memory that all ranks see
channel.py        messages from one rank to another on the same host
announcement.py   what goes before a message
reductions.py     the reductions by name, and who computes them
elements.py       what kernels need of them
one_host.py       every collective between ranks of one host, through slots or in place
"""
