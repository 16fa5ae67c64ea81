"""Where each worker stands when the next members of a job come together in the middle of a window.

A death may find one worker before a meeting's end and another after it, and steps further. Who has all that the meeting
needs ends it alone; who is behind goes on, and who is ahead waits for it at the boundary. Until then batches are cut
for those with whom the window began, so nobody's part is trained on twice. Newcomers come when all are at a boundary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gradtide.collective import Group
from gradtide.errors import CommunicationError

__all__ = ["APART", "GATHERED", "MEETING", "WindowMembers", "WindowProgress", "gather_progress"]

APART, MEETING, GATHERED = 0, 1, 2  # no meeting is under way; one is; one is, and all that it needs is here


class WindowProgress(NamedTuple):
    """One worker's, in numbers."""

    known: int = 0  # it is no newcomer
    steps: int = 0  # that it has taken in all
    windows: int = 0  # that have ended
    apart: int = 0  # steps since
    begun: int = 0  # whether it has seen anything of this window
    stage: int = APART
    asking: int = 0  # for the order of batches
    exchanges: int = 0  # about batches that it has finished


class WindowMembers:
    """Those of all workers, by rank."""

    def __init__(self, told: Sequence[WindowProgress]) -> None:
        known = [one for one in told if one.known]
        self.newcomers = len(told) - len(known)
        self.under_way = bool(known)
        self.steps = min((one.steps for one in known), default=0)
        self._reached = max((one.windows for one in known), default=0)
        self._gathered = all(one.stage == GATHERED for one in known)
        self.all = [
            one._replace(windows=one.windows + 1, apart=0, begun=0, stage=APART) if self.ends(one) else one
            for one in told
        ]
        known = [one for one in self.all if one.known]
        self.fresh = not any(one.begun for one in known)  # so that a window begins

    def ends(self, one: WindowProgress) -> bool:
        """Whether it has all that its meeting needs, and nobody lacks it: somebody may have gone on already."""
        return one.stage == GATHERED and (self._reached > one.windows or self._gathered)

    def check(self) -> None:
        """All of them know which batches are next."""
        known = [one for one in self.all if one.known]
        most = max(one.exchanges for one in known)
        if any(one.asking and one.exchanges < most for one in known):
            raise CommunicationError(
                "a worker died while the others were told which batches are next, and not all of them know; start the "
                "job again from its last checkpoint"
            )


def gather_progress(own: WindowProgress, group: Group | None) -> WindowMembers:
    """Everybody's, in rank order."""
    if group is None:
        return WindowMembers([own])
    told = group.all_gather(torch.tensor(own, dtype=torch.int64))
    return WindowMembers([WindowProgress(*row) for row in told.tolist()])
