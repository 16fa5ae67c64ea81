"""Splits a process group: each part's ranks join a group of their own through the whole one's store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from gradtide.collective.c10d.errors import BadArgument

__all__ = ["PartSettings", "Splitter"]


@dataclass(frozen=True, slots=True)
class PartSettings:
    """What torch says of a group that it wants to have made, under the names that it uses."""

    store: Any
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str


class Splitter:
    """Makes the parts of one process group. All of its ranks call it alike, those that are in no part too."""

    def __init__(self, store: Any, create: Callable[[Any, Any], Any], options: Any) -> None:
        self._store, self._create, self.options = store, create, options
        self._splits = count()

    def split(self, rank: int, size: int, ranks: Sequence[int], timeout: timedelta, options: Any, name: str) -> Any:
        """The part of these ranks, in increasing order; None for who is not one of them."""
        number, part = next(self._splits), sorted(ranks)
        if not part or len(part) != len(set(part)) or not 0 <= part[0] <= part[-1] < size:
            raise BadArgument(f"ranks {list(ranks)} are no part of a group with ranks 0 to {size - 1}")
        if rank not in part:
            return None
        # Not by the name that torch gives: ranks with other groups besides give other names.
        place = f"split {number} of ranks {','.join(map(str, part))}"
        store = vars(dist)["PrefixStore"](f"{place}/", self._store)  # torch does not declare it
        made = self._create(PartSettings(store, part.index(rank), len(part), timeout, name or place), options)
        made.setGroupName(name or place)
        return made
