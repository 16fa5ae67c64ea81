"""One file a benchmark, with peers beside us in one run.

machine.py     what this machine and its software are
contender.py   processes that wait for a command and time themselves, so that contenders can take turns
peers/         what runs in these processes, ours and others'
report.py      medians, ratios and a JSON file
train.py       gradtide against plain PyTorch, the textbook's loop and DDP over Gloo
training/      workers that train together: gradtide's beside DDP, and Lightning over both
frugal/        what sending less and sharing the work fairly are worth, and what they cost in accuracy
split/         models that are split, beside torch's pipelines and beside what was predicted
allreduce.py   collectives against Gloo, Open MPI and MPICH
hosts/         between hosts: what overlap is worth, and collectives against Gloo and a bare pair of sockets
staleness.py   time to accuracy through servers in bsp, bounded and async, when workers are not equally fast
store.py       the store against a bare pair of sockets, copy_, Redis and a Ray actor
tcp_store.py   a store over TCP on this machine, with or without TLS
checkpoint.py  how much a checkpoint slows its workers, and its rate beside the disk's own
recovery.py    from a kill to the next step, against torchrun, torchft and a Ray actor
launch.py      how soon workers are ready, against torchrun and Ray
"""
