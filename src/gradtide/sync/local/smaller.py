"""What workers have changed, compressed where they meet over collectives; or what hosts have, once for each of them.

What a codec leaves out is kept by parameter, in the measure of the weighted change (as it counts in the mean of all),
and counts where they meet next. A meeting that is begun again begins with what was left out before it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.compress import AUTO, Compress, payload_bytes
from gradtide.compress.compiled import Array
from gradtide.compress.powersgd import PowerSGD
from gradtide.sync.compressed.factored import FactoredBucket
from gradtide.sync.compressed.gathered import GatheredBucket
from gradtide.sync.compressed.leaders import HostLeaders
from gradtide.sync.compressed.predict import ONE_WORKER, decide, describe
from gradtide.sync.compressed.state import Compression, Round, hand_over, parts_of, working_dtype
from gradtide.sync.job import Job
from gradtide.sync.local.inside import InsideHost
from gradtide.sync.local.outer import ChangeRoom
from gradtide.sync.trained import Trained

__all__ = ["SmallerChanges", "decide_for_meetings"]

_WHO_COMES_LATER = "compress='auto': none, since who comes later can't measure the links with the others; name a codec"


class SmallerChanges:
    """One worker's."""

    def __init__(
        self, trained: Trained, room: ChangeRoom, settings: Compress, compression: Compression, *, hosts: int | None
    ) -> None:
        """`hosts`: so many, the workers of each of which are alike."""
        self._trained, self._room, self._settings, self._state = trained, room, settings, compression
        self._hosts = hosts
        stepped = [index for index, group in enumerate(trained.group_of()) if group >= 0]
        self._parts = [parts_of([stepped[number] for number in places], trained) for places in room.places]
        self._group: Group | None = None  # over which the last meeting was
        self._known: Mapping[str, Array] = {}  # what thin matrices go on from when workers meet for the first time
        self._exchanges: Sequence[FactoredBucket | GatheredBucket] = []

    def describe(self, group: Group | None) -> str:
        if group is None:
            return "there is nobody to compress for"
        return describe(self._settings, self._trained, group, "meeting", hosts=self._hosts)

    @property
    def is_of_leaders(self) -> bool:
        """Whether one worker of each host sends, and has what is left out. Thin matrices are added up by all, inside of
        hosts first; there it is nothing that the others give."""
        return self._hosts is not None and not isinstance(self._settings.make(), PowerSGD)

    def is_whole(self, steps: int) -> bool:
        """Whether who meets after so many steps sends what it has changed as it is."""
        return steps <= self._settings.after

    @property
    def size_bytes(self) -> int:
        """Of what a worker has changed, as it is sent."""
        codec = self._settings.make()
        return sum(payload_bytes(codec, part.form) for parts in self._parts for part in parts)

    @property
    def sent_bytes(self) -> int:
        """In the last meeting, by this worker or by the one that gave what its host had changed."""
        return sum(exchange.sent_bytes for exchange in self._exchanges) or (self.size_bytes if self._group else 0)

    def average(self, group: Group | None, share: float, number: int) -> None:
        """What is in the room, of which this worker's counts its share, becomes the mean of all. All ranks call it."""
        self._state.residuals.begin()
        if group is None:
            self._add_what_was_left()
            return
        if group is not self._group:
            self._open(group)
        if not self._exchanges:  # another one gives what this host has changed
            return
        given = frozenset(part.index for parts in self._parts for part in parts)
        now = Round(number, given, dict.fromkeys(given))
        for flat, exchange in zip(self._room.flat, self._exchanges, strict=True):
            flat.mul_(share)
            exchange.exchange(now)

    def _open(self, group: Group) -> None:
        codec, kept = self._settings.make(), self._state.residuals
        make = FactoredBucket if isinstance(codec, PowerSGD) else GatheredBucket
        leaders = HostLeaders(group) if self.is_of_leaders else None
        both = zip(self._room.flat, self._parts, strict=True) if leaders is None or leaders.leads else ()
        among = group if leaders is None else leaders
        self._exchanges = [make(among, codec, flat, parts, kept) for flat, parts in both]  # type: ignore[arg-type]
        self._group = group
        self.load_factors(self._known)

    def _add_what_was_left(self) -> None:
        """The last one has all that was left out when there were more."""
        residuals = self._state.residuals
        for flat, parts in zip(self._room.flat, self._parts, strict=True):
            for part in (part for part in parts if part.name in residuals):
                left = residuals.correct(part.name, np.zeros(part.form.count, part.form.dtype), None)
                flat[part.place].add_(torch.from_numpy(left))
                left[:] = 0

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of this worker."""
        factors = dict(self._known)  # of nothing, once workers have met
        for exchange in self._exchanges:
            factors |= exchange.factors()
        return self._state.state(factors)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._known = self._state.load_state(state, self._trained)
        self.load_factors(self._known)

    def load_factors(self, known: Mapping[str, Array]) -> None:
        for exchange in self._exchanges:
            exchange.load_factors(known)
        self._known = {} if self._exchanges else known

    def leave_to_leader(self, inside: InsideHost) -> None:
        """All workers of a host: the one that gives what it has changed has all that was left out, in sum."""
        residuals, every = self._state.residuals, self._trained.everything
        kept = torch.tensor([float(name in residuals) for name, _ in every] + [0.0])
        inside.sum_for_all(kept)
        for (name, parameter), known in zip(every, kept.tolist()[:-1], strict=True):
            if not known:
                continue
            left = torch.from_numpy(residuals.value(name, np.zeros(parameter.numel(), working_dtype(parameter))).copy())
            inside.sum_for_leader(left)
            residuals.put_back(name, left.numpy(), None)
        if not inside.leads:
            residuals.clear()

    def ended(self) -> None:
        """A meeting is over: what is left out now counts at the next one."""
        self._state.residuals.end()
        self._state.residuals.stepped()

    def hand_over(self, group: Group, number: int, going: Sequence[int]) -> None:
        hand_over(self._state.residuals, self._trained, group, number, going)


def decide_for_meetings(
    settings: Compress, trained: Trained, job: Job, hosts: int | None
) -> tuple[Compress | None, str]:
    """What is used, the same on all workers, and why nothing if it is nothing."""
    if job.group is None:
        return (None, ONE_WORKER) if settings.codec == AUTO else (settings, "")
    if settings.codec == AUTO and job.elastic is not None and not job.group.on_one_host:
        return None, _WHO_COMES_LATER
    return decide(settings, trained, job.group, hosts=hosts)
