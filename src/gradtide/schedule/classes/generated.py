"""A schedule of any size that is never one list: its seed, and how to turn it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradtide.errors import ScheduleError
from gradtide.schedule.classes.turns import Turns
from gradtide.schedule.model import Collective, Op, Schedule

__all__ = ["MOST_LISTED", "GeneratedSchedule"]

Ints = NDArray[np.intp]

MOST_LISTED = 2_000_000  # ops of one list: about 600 MB


@dataclass(frozen=True)
class GeneratedSchedule:
    """Every rank owns as many chunks as the seed has; those of rank r go the way of rank 0's, turned by r.

    Op e of the seed, turned by r, has the id e × ranks + r; the list of all is in the order of ids.
    """

    seed: Schedule
    turns: Turns

    @property
    def name(self) -> str:
        return self.seed.name

    @property
    def collective(self) -> Collective:
        return self.seed.collective

    @property
    def ranks(self) -> tuple[str, ...]:
        return self.seed.ranks

    @property
    def contributors(self) -> int:
        return self.seed.contributors

    @property
    def op_count(self) -> int:
        return len(self.seed.ops) * self.turns.count

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        return np.array([op.src for op in self.seed.ops]), np.array([op.dst for op in self.seed.ops])

    def ops_of(self, rank: int) -> Iterator[Op]:
        """The ops that this rank sends or receives, in the order of the list."""
        sources, targets = self._ends
        at = np.arange(len(sources))
        owners = np.stack([self.turns.subtract(rank, sources), self.turns.subtract(rank, targets)], axis=1)
        ids = np.sort((at[:, None] * self.turns.count + owners).ravel())
        yield from self._ops(*np.divmod(ids, self.turns.count))

    def _ops(self, ats: Ints, owners: Ints) -> Iterator[Op]:
        """Ops of the seed, each turned by its chunk's owner."""
        (sources, targets), count, ops = self._ends, self.turns.count, self.seed.ops
        ends = self.turns.add(sources[ats], owners).tolist(), self.turns.add(targets[ats], owners).tolist()
        for at, owner, src, dst in zip(ats.tolist(), owners.tolist(), *ends, strict=True):
            _, _, _, chunk, kind, deps, channel = ops[at]
            waits = tuple([dep * count + owner for dep in deps])
            yield Op(at * count + owner, src, dst, self.chunk(chunk, owner), kind, waits, channel)

    def op(self, at: int, owner: int) -> Op:
        """One op of the seed, turned by its chunk's owner."""
        return next(self._ops(np.array([at]), np.array([owner])))

    def chunk(self, slice_number: int, owner: int) -> int:
        """Chunks stand in the order of their owners."""
        return owner * len(self.seed.weights) + slice_number

    def owned_by(self, owner: int) -> Schedule:
        """All that is done for one owner's chunks, as a schedule of its own."""
        seed, count = self.seed, self.turns.count
        places = self.turns.add(np.arange(count), owner).tolist()
        ops = tuple(op._replace(src=places[op.src], dst=places[op.dst]) for op in seed.ops)
        owners = (owner,) * len(seed.owners)
        return Schedule(seed.name, seed.collective, seed.ranks, seed.contributors, seed.weights, ops, owners)

    def listed(self) -> Schedule:
        """The whole as one list."""
        if self.op_count > MOST_LISTED:
            raise ScheduleError(
                f"{self.name}: {self.op_count:,} ops are too many for one list; ask ops_of(rank), a rank at a time"
            )
        count = self.turns.count
        everyone = np.arange(count)
        turned = np.stack([self.turns.add(place, everyone) for place in range(count)]).tolist()
        slices = len(self.seed.weights)
        ops: list[Op] = []
        for at, (_, src, dst, chunk, kind, deps, channel) in enumerate(self.seed.ops):
            first, sources, targets = at * count, turned[src], turned[dst]
            ops += [
                Op(
                    first + owner, sources[owner], targets[owner], owner * slices + chunk, kind,
                    tuple([dep * count + owner for dep in deps]), channel,
                )
                for owner in range(count)
            ]  # fmt: skip
        owners = tuple(owner for owner in range(count) for _ in range(slices)) if self.seed.owners else ()
        return Schedule(
            self.name, self.collective, self.ranks, self.contributors, self.seed.weights * count, tuple(ops), owners
        )
