"""Runs the stages of an operation: each is one compiled call, and Python has a turn only where one has to wait."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gradtide.collective.host.board import Board
from gradtide.collective.host.extents import Base, Extent
from gradtide.collective.host.handing import CopiedRow, Hand, ShownRow, SummedRow, TakenRow, hand_words
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.signature import Signature
from gradtide.collective.links.links import HostLinks, Prepared
from gradtide.collective.links.parts import Awaited, Exchange
from gradtide.collective.links.place import Stages
from gradtide.kernels import DONE, KERNELS, WAITING, ExchangePlan, HandPlan

__all__ = ["Planned", "StageRunner"]

_HAND, _EXCHANGE, _OVERLAPPING, _AWAITED = range(4)
_KEPT_BYTES = 64 << 20  # of scratch memory, between operations


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The stages of one operation, ready for any tensor of its kind."""

    signature: Signature
    stages: tuple[tuple[int, int], ...]  # what kind it is, and the address of its words
    scratch_bytes: int
    keeps: tuple[Prepared | npt.NDArray[np.int64], ...]  # what is at those addresses

    @property
    def address(self) -> "Planned":
        """What all_reduce_now takes, where it takes an address on one host."""
        return self


class StageRunner:
    """One operation at a time."""

    def __init__(self, board: Board, links: HostLinks, watch: RankWatch) -> None:
        self._board, self._links, self._watch = board, links, watch
        self._hand = KERNELS.HAND.entry
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._under_way: tuple[Planned, int, int, int] | None = None  # and the three addresses
        self._stage, self._overlapped = 0, DONE

    def plan(self, signature: Signature, stages: Stages) -> Planned:
        keeps: list[Prepared | npt.NDArray[np.int64]] = []
        found = []
        for stage in stages:
            if isinstance(stage, Hand):
                words = hand_words(self._board, stage)
                words[HandPlan.SIGNATURE] = signature.number
                keeps.append(words)
                found.append((_HAND, int(words.ctypes.data)))
            elif isinstance(stage, Exchange):
                prepared = self._links.prepare(stage)
                prepared.words[ExchangePlan.SIGNATURE] = signature.number
                keeps.append(prepared)
                found.append((_OVERLAPPING if stage.overlaps else _EXCHANGE, prepared.address))
            else:
                found.append((_AWAITED, 0))
        return Planned(signature, tuple(found), max(map(_scratch_bytes, stages), default=0), tuple(keeps))

    def begin(self, plan: Planned, tensor: int, out: int) -> int:
        """Stage after stage, until one does not end at once; tensor and out are addresses."""
        scratch = self._room(plan.scratch_bytes) if plan.scratch_bytes else 0
        self._under_way, self._stage = (plan, tensor, out, scratch), 0
        return self._go_on()

    def _go_on(self) -> int:
        assert self._under_way is not None
        plan, tensor, out, scratch = self._under_way
        for kind, address in plan.stages[self._stage :]:
            if kind == _HAND:
                code: int = self._hand(address, tensor, out, scratch)
            elif kind == _AWAITED:
                code = self._links.go_on() if self._overlapped == WAITING else self._overlapped
            else:
                code = self._links.begin(address, tensor, out, scratch)
                if kind == _OVERLAPPING:
                    self._overlapped, code = code, DONE
            if code != DONE:
                return code
            self._stage += 1
        return DONE

    def finish(self, code: int, timeout_s: float) -> None:
        """Sees what did not end at once to its end."""
        while code != DONE:
            assert self._under_way is not None
            plan, *addresses = self._under_way
            kind, address = plan.stages[self._stage]
            if kind == _HAND:
                self._board.finish(code, lambda: self._hand(address, *addresses), plan.signature, timeout_s)  # noqa: B023
            else:
                self._links.finish(code)
            self._watch.moved()
            self._stage += 1
            code = self._go_on()

    def _room(self, size_bytes: int) -> int:
        """The address of as much scratch memory. Much of it is not kept for long: until the next operation."""
        if len(self._scratch) < size_bytes or len(self._scratch) > _KEPT_BYTES:
            self._scratch = torch.empty(size_bytes, dtype=torch.uint8)
        return self._scratch.data_ptr()


def _scratch_bytes(stage: Hand | Exchange | Awaited) -> int:
    extents: list[Extent] = []
    if isinstance(stage, Exchange):
        extents += [stage.share.mine, stage.share.own]
        for part in stage.parts:
            extents += [part.first, part.arriving, part.result]
    elif isinstance(stage, Hand):
        for entry in stage.entries:
            match entry:
                case ShownRow(_, what):
                    extents.append(what)
                case TakenRow(_, _, _, to):
                    extents.append(to)
                case SummedRow(_, one, other) | CopiedRow(one, other):
                    extents += [one, other]
    return max((extent.offset + extent.size_bytes for extent in extents if extent.base == Base.SCRATCH), default=0)
