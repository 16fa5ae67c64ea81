"""One file a benchmark, with peers beside us in one run.

machine.py         what this machine and its software are
peers.py           processes that wait for a command and time themselves, so that peers can take turns
report.py          medians, ratios, a table and a JSON file
train.py           gradtide against plain PyTorch, the textbook's loop and DDP over Gloo
train_peer.py      one of these, in a process of its own
workers.py         workers of gradtide against DDP, and processes that never synchronise
workers_peer.py    one of these
overlap.py         what overlap is worth between two hosts on a slow wire, beside the planner's prediction
overlap_peer.py    a worker of these
allreduce.py       collectives against Gloo, Open MPI and MPICH
allreduce_peer.py  a rank of gradtide's or Gloo's
allreduce_mpi.py   a rank of MPI's
mpi_launch.py      how MPI's ranks are started
staleness.py       time to accuracy through servers in bsp, bounded and async, when workers are not equally fast
staleness_peer.py  a worker of these
store.py           the store against a bare pair of sockets, copy_, Redis and a Ray actor
store_peer.py      one of these, in a process of its own
checkpoint.py      how much a checkpoint slows its workers, and its rate beside the disk's own
recovery.py        from a kill to the next step, against torchrun, torchft and a Ray actor
recovery_rivals.py  how these are started, killed and ended
recovery_peer.py   a rank under torchrun
recovery_torchft.py  a replica of torchft
recovery_ray.py    the driver of a Ray actor
launch.py          how soon workers are ready, against torchrun and Ray
launch_peer.py     a worker that says so
"""
