"""One object a way to synchronise, chosen once at construction, in the order a gradient meets them.

job.py            the processes that train together, as this one sees them
own_loop.py       for loops of one's own: who this worker is, and a mean over all
trained.py        what is trained: parameters that ask for a gradient, and the optimizers that step them
ways.py           what every way to synchronise can do
watching/         what the user's program does: its backwards, its edits, its time, its loops of different lengths
state.py          what is alike on all ranks besides parameters: the model's outline, optimizers' options and state
in_group.py       what the ways of ranks in a group have in common
choose.py         which way a model goes, and why
alone.py          one worker: nothing to synchronise
local/            each rank steps by itself, and all meet now and then
shared/           one host: parameters in shared memory, each rank reduces and updates its share
buckets.py        buckets of gradients that leave while backward goes on
reduce.py         collectives: all-reduce the buckets, then every rank takes the same step
compressed/       the same with compressed gradients
servers/          a parameter server: push gradients, pull values
synchroniser.py   a worker's steps along its way, and along the next one when workers come, go or die
"""

from gradtide.sync.job import Job, current_job
from gradtide.sync.local import Local
from gradtide.sync.servers import Servers
from gradtide.sync.ways import Way

__all__ = ["Job", "Local", "Servers", "Way", "current_job"]
