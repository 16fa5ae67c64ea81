"""The contenders of the benchmarks, each a program of its own that a benchmark starts and asks to take its turn.

training.py             a batch, and a step on it, for those that train
train.py                one contender of bench train
workers.py              a worker of one contender of bench train --workers
overlap.py              a worker of one contender of bench overlap
allreduce.py            a rank of gradtide's or Gloo's in bench allreduce
between_hosts.py        a rank of all contenders of bench allreduce --hosts
between_hosts_mpi.py    a rank of Open MPI's there
allreduce_mpi.py        a rank of MPI's
mpi_launch.py           how MPI's ranks are started
staleness.py            a worker of bench staleness
store.py                one contender of bench store
recovery_rivals.py      how the others of bench recovery are started, killed and ended
recovery_ranks.py       a rank under torchrun, or in a process group whose members change
recovery_torchft.py     a replica of torchft
recovery_ray.py         the driver of a Ray actor
launch.py               a worker of bench launch, which says when it is ready
"""
