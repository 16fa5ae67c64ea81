"""A job on many nodes, on a virtual clock: the head's own decisions, the registrar and workers' leases, with nodes that
die, stand still or are cut off, messages that are late, and agents that come later.

    python -m gradtide.testing.fleet.simulation --seeds 1000

trouble.py     what happens in a run, by its seed
network.py     who reaches whom: messages in order and late, connections that break or fall silent
workers.py     workers and agents, as far as a job's life goes
head.py        the head, with a virtual clock instead of sockets
checks.py      what must hold, and the first time that it does not
simulation.py  one run, or many
"""
