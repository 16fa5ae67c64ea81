"""One object a way to synchronise, chosen once at construction, in the order a gradient meets them.

job.py            the processes that train together, as this one sees them
ways.py           what every way to synchronise can do
state.py          where the job stands: told to newcomers, and kept for a step that has to be undone
choose.py         which way a model goes, and why
alone.py          one worker: nothing to synchronise
flat.py           parameters laid out in one flat space, and who owns which share of it
combine.py        the compiled pass that adds up what the ranks handed over
pieces.py         an optimizer that steps a rank's share, a cache-sized piece at a time
shared.py         one host: parameters in shared memory, each rank reduces and updates its share
buckets.py        gradients gathered in buckets that leave while backward goes on
reduce.py         collectives: all-reduce the buckets, then every rank takes the same step
servers.py        a parameter server: push gradients, pull values
"""

from gradtide.sync.job import Job, current_job
from gradtide.sync.servers import Servers
from gradtide.sync.ways import Way

__all__ = ["Job", "Servers", "Way", "current_job"]
