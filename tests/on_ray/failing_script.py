"""A user's script on Ray's nodes: adds up over all workers, says where it is, and one of them fails."""

import sys

import torch

from gradtide import Group

group = Group.from_environment()
summed = group.all_reduce(torch.ones(3))
print(f"rank {group.rank} of {group.size} adds up to {summed.tolist()}; {sys.argv[1:]}", flush=True)
group.barrier()
if group.rank == 1:
    raise ValueError("boom")
group.barrier()
