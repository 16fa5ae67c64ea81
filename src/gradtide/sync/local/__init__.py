"""Local steps: each worker trains by itself, and every so many steps all of them meet.

What a worker has changed since the last meeting (the base minus its parameters) is averaged over the workers, weighted
by the samples that each has seen, and an outer optimizer steps the base with it as if it were a gradient. Plain SGD
with a rate of 1 gives the mean of the workers' parameters. Optimizer state stays each worker's own.

settings.py        what a user says: Local(50, outer)
outer.py           what all begin a window with, the outer optimizer, and the room in which changes are averaged
inside.py          the workers of a host, who take every step together
progress.py        where each worker stands when the next members of a job come together
smaller.py         what workers have changed, compressed where they meet
way.py             the way of workers that meet over collectives
base.py            what servers hold: the base, the buffers, and what workers compare
pace.py            how fast a worker computes, and how many steps it takes beside the fastest one
servers.py         the way of workers that meet over servers
together_first.py  the same, after some steps that are taken together
"""

from gradtide.sync.local.outer import OuterState
from gradtide.sync.local.servers import LocalOverServers
from gradtide.sync.local.settings import Local
from gradtide.sync.local.together_first import TogetherFirst
from gradtide.sync.local.way import LocalSteps

__all__ = ["Local", "LocalOverServers", "LocalSteps", "OuterState", "TogetherFirst"]
