"""One file a benchmark, with peers beside us in one run.

machine.py     what this machine and its software are
contender.py   processes that wait for a command and time themselves, so that contenders can take turns
peers/         what runs in these processes, ours and others'
report.py      medians, ratios and a JSON file
train.py       gradtide against plain PyTorch, the textbook's loop and DDP over Gloo
workers.py     workers of gradtide against DDP, and processes that never synchronise
overlap.py     what overlap is worth between two hosts on a slow wire, beside the planner's prediction
frugal/        what sending less and sharing the work fairly are worth, and what they cost in accuracy
allreduce.py   collectives against Gloo, Open MPI and MPICH
between_hosts.py  collectives between hosts against Gloo and a bare pair of sockets
staleness.py   time to accuracy through servers in bsp, bounded and async, when workers are not equally fast
store.py       the store against a bare pair of sockets, copy_, Redis and a Ray actor
tcp_store.py   a store over TCP on this machine, with or without TLS
checkpoint.py  how much a checkpoint slows its workers, and its rate beside the disk's own
recovery.py    from a kill to the next step, against torchrun, torchft and a Ray actor
launch.py      how soon workers are ready, against torchrun and Ray
"""
