"""What belongs to processes rather than to what they compute.

job_protocol.py  what a job's workers and its launcher say to each other: who works together, who comes, who goes
lease.py         how long a worker may go on without hearing from the registrar
naming.py        what a process is called in ps and top
forking.py       processes made by fork: they die with their maker, and it reaps them
at_fork.py       what becomes of a thing that nobody shares when its process forks
ready.py         which descriptors can be read or written now
scratch.py       folders that go with their process, and what killed ones left
wake.py          a pipe that ends the sleep of a loop, from another thread or a signal
whereabouts.py   where in its code a process is, for another that waits for it
credentials.py   whose process is at the other end of a UNIX socket
malloc.py        how the C library keeps memory that was freed
"""

from gradtide.linux import require_linux

require_linux("gradtide.processes")  # here, since all that can't do without it imports this room
