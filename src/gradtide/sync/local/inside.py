"""The workers of a host, who take every step together while the hosts step by themselves."""

import os

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.sync.job import BatchShare, Job
from gradtide.sync.reduce import Reduce

__all__ = ["InsideHost", "join_inside"]

_TOKEN_BYTES = 8


def join_inside(group: Group) -> Group | None:
    """The group of this host's ranks; None if this one is alone here. All ranks call it together."""
    token = torch.frombuffer(bytearray(os.urandom(_TOKEN_BYTES)), dtype=torch.uint8).clone()
    group.broadcast(token)
    host = group.host_of[group.rank]
    here = [rank for rank, place in enumerate(group.host_of) if place == host]
    if len(here) == 1:
        return None
    name = f"inside-{bytes(token.tolist()).hex()}-{host}"
    return Group.join(name, here.index(group.rank), len(here), timeout_s=group.timeout_s)


class InsideHost:
    """One worker's end of it: how its gradient goes into the host's, and what it counts there."""

    def __init__(self, job: Job, group: Group, reduce: Reduce) -> None:
        self._job, self._group, self.reduce = job, group, reduce
        self._share: BatchShare | None = None
        self._known, self._total = False, 0.0  # the host's samples of the batch that this part is of

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def leads(self) -> bool:
        """Whether this worker gives what the host has where hosts meet."""
        return self._group.rank == 0

    def add_up(self, samples: float) -> float:
        """Of all workers here."""
        return float(self._group.all_reduce(torch.tensor([samples, 0.0], dtype=torch.float64))[0])

    def spread(self, tensor: Tensor) -> None:
        """Every worker's here becomes that of the one that leads."""
        self._group.broadcast(tensor)

    def sum_for_all(self, tensor: Tensor) -> None:
        self._group.all_reduce(tensor)

    def sum_for_leader(self, tensor: Tensor) -> None:
        self._group.reduce(tensor)

    def measure(self, weight: float) -> float:
        """What this worker's part counts in the host's: all workers here ask once a batch."""
        share = self._job.share
        if not self._known or share is not self._share:
            self._known, self._share = True, share
            self._total = self.add_up(1.0 if share is None else float(share.samples))
        if not weight or not self._total:
            return 0.0
        return (1.0 if share is None else share.samples) / self._total

    @property
    def saw_nothing(self) -> bool:
        """Whether no worker here had a sample of this batch: then no step is taken with it."""
        return self._known and not self._total
