"""`gradtide bench …`: gradtide beside its peers, in one run; one file a command.

app.py         puts the commands together
common.py      what all of them do: where figures go, what is said meanwhile and in the end
train.py       devices of one process, or workers, against PyTorch alone and DDP
reading.py     a dataset that takes its time, of which each worker reads its part
overlap.py     two hosts of which the wire is slow
balance.py     workers of which one is slow, with equal shares and with shares that follow speed
split.py       a model on two processes, a part of its layers on each
frugal.py      the same two hosts, where workers send less
allreduce.py   collectives against Gloo and MPI
store.py       push_pull against a bare pair of sockets, Redis and Ray
recovery.py    from a kill to the next step
checkpoint.py  how much a checkpoint slows a worker
staleness.py   time to accuracy when workers are not equally fast
launch.py      how soon workers are ready
watching.py    what a reader of the dashboard costs a training, and what --trace does
plan.py        what planning costs, from 8 devices to 10,000
"""
