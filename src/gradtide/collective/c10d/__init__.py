"""torch.distributed over gradtide's collectives: init_process_group("gradtide").

starting.py        gradtide.init(): a process group that trainers of others take up
creating.py        makes the process group that torch asks for, from its store
process_group.py   the collectives under the names and with the arguments that torch uses
reconfigure.py     other members for one that stays
versions.py        what differs between versions of torch
splitting.py       its parts, each a process group of its own
shapes.py          torch's lists of tensors as the rows that a Group takes, and back
sparse.py          all-reduce of sparse tensors
work.py            what torch's operations return, and how their errors reach who waits
compiling.py       keeps torch.compile out
errors.py          our errors as torch's DistBackendError
hook.py            the communication hook for DDP over any other process group
"""
