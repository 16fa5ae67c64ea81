"""One worker of each host, as a group: what is compressed goes between hosts once, however many workers they have."""

import torch
from torch import Tensor

from gradtide.collective import Group

__all__ = ["HostLeaders"]


class HostLeaders:
    """What a bucket needs of a group, by messages between the first ranks of hosts; the others have no part in it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ranks = [group.host_of.index(host) for host in dict.fromkeys(group.host_of)]
        self.leads = group.rank in self._ranks
        self.rank, self.size = self._ranks.index(group.rank) if self.leads else -1, len(self._ranks)

    @property
    def _others(self) -> list[int]:
        """Of the leaders, by their number."""
        return [number for number in range(self.size) if number != self.rank]

    def shared_tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        """In memory of its own: the others are on other hosts."""
        return torch.zeros(count, dtype=dtype)

    def all_gather(self, tensor: Tensor, out: Tensor) -> None:
        """Every leader's tensors, one after the other."""
        ranks = [(number, self._ranks[number]) for number in self._others]
        coming = [self._group.recv(out[number], rank, async_op=True) for number, rank in ranks]
        going = [self._group.send(tensor, rank, async_op=True) for _, rank in ranks]
        out[self.rank].copy_(tensor)
        for handle in [*coming, *going]:
            handle.wait()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Every leader's tensor becomes that of leader `root`."""
        if self.rank != root:
            self._group.recv(tensor, self._ranks[root])
            return
        for handle in [self._group.send(tensor, self._ranks[number], async_op=True) for number in self._others]:
            handle.wait()
