"""Groups of ranks: join one, then call all_reduce, broadcast, send and the rest, blocking or for a handle.

group.py           Group, as a user sees it
calls.py           its calls: one at a time and in order, now or in the background, none after it broke
ordered_queue.py   work that must happen in order, now or in the background
messages.py        its messages between two ranks: by tag, from anybody, now or in the background
letters.py         letters between two ranks of one host, read where they were written
joining.py         how a group comes to be, on one host or on many
parting.py         a part of a group: some of its ranks, in a group of their own
many_hosts.py      every collective between hosts: shared memory inside, links between
device_group.py    a group whose tensors lie on an accelerator: torch.distributed's own, beside a Group
probing.py         measures the links between the ranks, and remembers what it found
measuring.py       measures collectives between hosts: over how many flows, and how long they take
explaining.py      what a group says of itself: which way, what was predicted, what was measured
preload.py         all of this loaded ahead, by a process that makes workers by fork
"""
