"""The messages of schedules between hosts: links that are made when a schedule first needs them, and what runs on them.

Every process knows the whole schedule, and takes what comes from another in the order in which that one sends it: on a
link go the chunks' bytes and nothing else.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import torch

from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.reductions import Reduction, combine
from gradtide.collective.links.connecting import Connect
from gradtide.collective.links.transfers import BrokenStream, LinkSet, Transfers
from gradtide.errors import PeerLost, PeerTimeout

__all__ = ["LinkWire", "ScheduleLinks"]

_CONNECT_S = 60.0  # everybody has just met
_PUSH_MS, _LOOK_S = 1, 0.1


class ScheduleLinks:
    """A link between each two ranks of different hosts that a schedule wanted."""

    def __init__(self, rank: int, links: LinkSet, connect: Connect, watch: RankWatch) -> None:
        self._rank, self._links, self._connect, self._watch = rank, links, connect, watch
        self._made: set[tuple[int, int]] = set()
        self._numbers = count()

    def wire(self, pairs: frozenset[tuple[int, int]], leaving: Mapping[int, int], timeout_s: float) -> "LinkWire":
        """For one run of a schedule, in which all ranks are by now.

        pairs: of ranks on different hosts that it links; leaving: how many chunks go from here to each rank.
        """
        if new := pairs - self._made:
            self._open(new, timeout_s)
        others = [low + high - self._rank for low, high in sorted(pairs) if self._rank in (low, high)]
        return LinkWire(self._links, self._watch, others, leaving)

    def _open(self, pairs: frozenset[tuple[int, int]], timeout_s: float) -> None:
        """All ranks do it, also those that need none of them, so that all know what there is."""
        mine = [low + high - self._rank for low, high in pairs if self._rank in (low, high)]
        try:
            limit_s = min(timeout_s, _CONNECT_S)
            made = self._connect(f"schedule {next(self._numbers)}", sorted(mine), limit_s, self._watch.check)
        except (PeerLost, PeerTimeout) as error:
            raise self._watch.reason() or error from None
        self._links.add(made)
        self._made |= pairs


class LinkWire:
    """What goes between this rank and those of other hosts in one run."""

    def __init__(self, links: LinkSet, watch: RankWatch, others: Sequence[int], leaving: Mapping[int, int]) -> None:
        self._watch, self._awaited = watch, others[0] if others else -1
        self._ranks = [rank for rank in others for _ in range(2)]  # of each stream
        self._stream = {rank: 2 * at for at, rank in enumerate(others)}  # to it; the next one is from it
        ends = [end for rank in others for end in ((rank, True), (rank, False))]
        room = [pieces for rank in others for pieces in (leaving.get(rank, 0), 1)]
        self._transfers: Transfers = links.streams(ends, room, adds_up=True)
        self._deadline, self._look_at = time.monotonic() + watch.remaining_s(), time.monotonic() + _LOOK_S

    def send(self, data: torch.Tensor, process: int, tag: int) -> "_Leaving":
        stream = self._stream[process]
        number = self._transfers.add(stream, data.data_ptr(), data.nbytes)
        self._moved(lambda: self._transfers.push(0))
        return _Leaving(self, stream, number)

    def expect(self, messages: object) -> None:
        """What comes waits in the kernel until it is taken."""

    def take(self, how: Reduction, kind: str, target: torch.Tensor, process: int) -> None:
        blocks = how.blocks if kind == "reduce" else None
        by_torch = kind == "reduce" and blocks is None
        into, stream = torch.empty_like(target) if by_torch else target, self._stream[process] + 1
        self._transfers.forget(stream)
        if blocks is None:
            self._transfers.add(stream, into.data_ptr(), into.nbytes)
        else:
            self._transfers.add(stream, into.data_ptr(), into.nbytes, blocks.combine, blocks.item_bytes)
        self.wait(stream, 1)
        self._watch.moved()
        if by_torch:
            combine(how, target, into)

    def push(self) -> bool:
        """Moves on, for a millisecond; whether all that was sent has left."""
        over = self._moved(lambda: self._transfers.push(_PUSH_MS))
        if not over and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            self._look(False)
        return over

    def wait(self, stream: int, until: int) -> None:
        self._awaited = self._ranks[stream]

        def go_on() -> bool:
            self._transfers.wait(stream, until, self._look)
            return True

        self._moved(go_on)

    def _moved(self, go_on: Callable[[], bool]) -> bool:
        try:
            return go_on()
        except BrokenStream as error:
            rank = self._ranks[error.stream]
            if error.meddling:
                raise self._watch.meddling(rank, error.meddling) from None
            lost = PeerLost(f"rank {rank} is gone (its link: {error}); see its own output for why")
            raise self._watch.reason() or lost from None

    def _look(self, moved: bool) -> None:
        watch = self._watch
        if moved:
            watch.moved()
        watch.check()
        if time.monotonic() >= self._deadline and not watch.may_go_on(f"rank {self._awaited}"):
            raise PeerTimeout(f"rank {self._awaited} did not answer in time; is it stuck?")


class _Leaving:
    """A chunk under way."""

    def __init__(self, wire: LinkWire, stream: int, number: int) -> None:
        self._wire, self._stream, self._number = wire, stream, number

    def wait(self) -> None:
        self._wire.wait(self._stream, self._number)
