"""What the ways of ranks in a group have in common: they step as one, and hold everything themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.events import Emit, LinksPlanned
from gradtide.sync.state import share_buffers
from gradtide.sync.trained import Trained
from gradtide.sync.ways import EveryStep

__all__ = ["InGroup"]


class InGroup(EveryStep):
    """The part of a way that is not about gradients."""

    is_collective, store, servers_step = True, None, False

    def __init__(self, trained: Trained, group: Group | DeviceGroup) -> None:
        self._trained, self._group = trained, group
        self._links: LinksPlanned | None = None  # until it is told

    def _tell_links(self, emit: Emit) -> None:
        """With the first synchronisation, and not before: starting up is not training."""
        if self._links is not None:
            emit(self._links)
            self._links = None

    @property
    def led(self) -> bool:
        return self._group.rank == 0

    def weigh(self, terms: float, otherwise: float) -> float:
        total = float(self.add_up(torch.tensor([terms], dtype=torch.float64)))
        return terms / total if total else otherwise

    def step(self, weights: Sequence[float]) -> None:
        """The optimizers take it."""

    def share_parameters(self) -> None:
        for _, parameter in self._trained.everything:
            self._group.broadcast(parameter.data)

    def share_buffers(self, root: int = 0) -> None:
        share_buffers(self._trained, self._group, root)

    def add_up(self, numbers: Tensor) -> Tensor:
        total: Tensor = self._group.all_reduce(numbers)
        return total

    def depart(self) -> None:
        """The others need not be told: the next group is formed by all, without this rank."""

    def finish(self) -> None:
        """A step ends with everybody's part in it."""

    def begin_again(self) -> None:
        """There are no servers that could have lost anything."""
