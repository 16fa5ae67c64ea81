"""The sockets between ranks of different hosts, and an exchange over them that notices the dead and the late.

The compiled exchange comes back now and then, at the latest after a tenth of a second. Then Python has its turn: a
Ctrl-C arrives, the watch tells who died, and who is late is found out.
"""

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.collective.host.extents import Base, Extent
from gradtide.collective.host.one_host import Call
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.parts import Exchange, LinkPart
from gradtide.errors import CommunicationError, PeerLost, PeerTimeout
from gradtide.kernels import BROKEN, DONE, KERNELS, WAITING, Deal, ExchangePlan, Head, LinkRow

__all__ = ["Disagreement", "HostLinks", "Prepared", "shut"]

Words = npt.NDArray[np.int64]
_STAGE_BYTES = 1 << 20  # of each link: what has come and waits to be added up stays in the cache
_GRAIN_BYTES = 32 << 10
_MOST_BYTES = 1 << 20
_SLEEP_MS, _TURN_NS = 100, 100_000_000
_alive: "weakref.WeakSet[HostLinks]" = weakref.WeakSet()


class Disagreement(Exception):
    """Hosts asked for different things. All of them see it at the same exchange, and their links are clean."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An exchange as the words that the kernel takes; all but addresses, which are new each time."""

    address: int
    words: Words  # what is at the address
    places: tuple[Words, ...]  # and what that refers to


class HostLinks:
    """This rank's links to ranks of other hosts, for one exchange at a time."""

    def __init__(self, rail: Sequence[int], sockets: Mapping[int, socket.socket], watch: RankWatch) -> None:
        """rail: the rank of each other host that has this one's number there, if it drives; sockets: by rank."""
        self._rail, self._mesh = list(rail), sorted(sockets)
        self._sockets, self._watch = dict(sockets), watch
        self._ranks = {link.fileno(): rank for rank, link in sockets.items()}
        self._stages = np.empty(len(sockets) * _STAGE_BYTES, np.uint8)
        self._rows = Deal.WORDS
        self._heads = self._rows + len(sockets) * LinkRow.WORDS
        self._polls = self._heads + 2 * len(sockets) * Head.WORDS
        self._counters = self._polls + len(sockets)  # how many exchanges there were, on the rail and on all links
        self._words = np.zeros(self._counters + 2, np.int64)
        self._address, self._turn = int(self._words.ctypes.data), threading.Lock()
        self._exchange, self._resume = KERNELS.EXCHANGE.entry, KERNELS.RESUME_EXCHANGE.entry
        for link in self._sockets.values():
            link.setblocking(False)
        _alive.add(self)

    def run(self, call: Call, prepared: Prepared, tensor: int, out: int = 0) -> None:
        """One exchange; tensor and out are addresses."""
        prepared.words[ExchangePlan.SIGNATURE] = call.signature.number
        code = self.begin(prepared.address, tensor, out, 0)
        if code != DONE:
            self.finish(code)
        self._watch.moved()

    def begin(self, plan: int, tensor: int, out: int, scratch: int) -> int:
        """A turn of the compiled exchange. Descriptors must not be closed under it: their numbers would soon be those
        of other files."""
        with self._turn:
            return self._exchange(plan, tensor, out, scratch) if self._sockets else BROKEN

    def go_on(self) -> int:
        """Another turn of it."""
        with self._turn:
            self._words[[Deal.SLEEP_MS, Deal.TURN_NS]] = _SLEEP_MS, _TURN_NS
            if not self._sockets:
                raise CommunicationError("the group was closed during an operation; wait for what you ask for")
            return int(self._resume(self._address))

    def finish(self, code: int) -> None:
        """Sees an exchange that did not end at once to its end."""
        words, moved = self._words, 0
        deadline = time.monotonic() + self._watch.remaining_s()
        while code == WAITING:
            if words[Deal.MOVED] != moved:
                moved = words[Deal.MOVED]
                self._watch.moved()
            self._watch.check()
            if time.monotonic() >= deadline and not self._watch.may_go_on(f"rank {self._awaited()}"):
                raise PeerTimeout(f"rank {self._awaited()} did not answer in time; is it stuck?")
            code = self.go_on()
        if code == BROKEN:
            raise self._watch.reason() or self._broken()
        if code != DONE:
            raise Disagreement

    def _awaited(self) -> int:
        """The rank that is furthest behind."""
        rows = self._words[self._rows : self._heads].reshape(-1, LinkRow.WORDS)[: self._words[Deal.LINKS]]
        coming = rows[:, LinkRow.ARRIVING_BYTES] + rows[:, LinkRow.RESULT_BYTES] - rows[:, LinkRow.RECEIVED]
        return self._rank_of(int(coming.argmax()))

    def _rank_of(self, link: int) -> int:
        return self._ranks[int(self._words[self._rows + link * LinkRow.WORDS + LinkRow.DESCRIPTOR])]

    def _broken(self) -> PeerLost:
        rank, error = self._rank_of(int(self._words[Deal.BROKEN_LINK])), int(self._words[Deal.ERROR])
        return PeerLost(f"rank {rank} is gone (its link: {os.strerror(error)}); see its own output for why")

    def close(self) -> None:
        """What was sent still arrives. An exchange that another thread is in ends first, at once."""
        if not self._turn.acquire(blocking=False):
            shut(self._sockets.values())
            self._turn.acquire()
        self._close_sockets()
        self._turn.release()

    def _close_sockets(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()

    # --- From layouts to words ---

    def prepare(self, layout: Exchange) -> Prepared:
        words, bases = np.zeros((2, self._counters), np.int64)
        share, blocks, address = layout.share, layout.share.blocks, self._address

        def put(at: int, place: Extent) -> None:
            words[at], bases[at] = place.offset, place.base

        words[Deal.LINKS], words[Deal.ROWS] = len(layout.parts), address + 8 * self._rows
        words[Deal.POLLS], words[Deal.ME] = address + 8 * self._polls, layout.me
        words[[Deal.STAGE_BYTES, Deal.GRAIN_BYTES, Deal.MOST_BYTES]] = _STAGE_BYTES, _GRAIN_BYTES, _MOST_BYTES
        if not layout.overlaps:  # else the first turn ends when nothing moves
            words[[Deal.SLEEP_MS, Deal.TURN_NS]] = _SLEEP_MS, _TURN_NS
        put(Deal.MINE, share.mine)
        put(Deal.OWN, share.own)
        words[Deal.MINE_BYTES], words[Deal.OVERWRITES] = share.mine.size_bytes, share.overwrites
        words[Deal.COPIES] = share.copies
        if blocks is not None:
            words[[Deal.COMBINE, Deal.LAST]] = blocks.combine, blocks.last
            words[[Deal.ITEM, Deal.DIVISOR]] = blocks.item_bytes, blocks.divisor
        elif share.follows is not None:
            words[Deal.FOLLOWS] = 1 + share.follows - (share.follows > layout.me)
        elif not share.copies:
            words[Deal.READY] = share.mine.size_bytes
        ranks = self._mesh if layout.mesh else self._rail
        for link, (rank, part) in enumerate(zip(ranks, layout.parts, strict=True)):
            self._prepare_link(link, rank, part, words, bases)
        return self._plan(words, bases, 8 * (self._counters + layout.mesh))

    def _plan(self, words: Words, bases: Words, counter: int) -> Prepared:
        places = tuple(np.flatnonzero(bases == base) for base in (Base.TENSOR, Base.OUT, Base.SCRATCH))
        lists = [number for place in places for number in (place.ctypes.data, len(place))]
        plan = np.array([self._address, len(words), self._address + counter, 0, *lists], np.int64)
        whole = np.concatenate([plan, words])
        return Prepared(int(whole.ctypes.data), whole, places)

    def _prepare_link(self, link: int, rank: int, part: LinkPart, words: Words, bases: Words) -> None:
        row, address = self._rows + link * LinkRow.WORDS, self._address
        head, heard = (self._heads + Head.WORDS * (link + n * len(self._mesh)) for n in (0, 1))
        words[row + LinkRow.DESCRIPTOR] = self._sockets[rank].fileno()
        words[row + LinkRow.HEAD], words[row + LinkRow.HEARD] = address + 8 * head, address + 8 * heard
        words[row + LinkRow.STAGE] = self._stages.ctypes.data + link * _STAGE_BYTES
        words[row + LinkRow.SECOND_BYTES] = part.second_bytes
        words[head + Head.FIRST_BYTES] = part.first.size_bytes
        for at, place in (
            (LinkRow.FIRST, part.first),
            (LinkRow.ARRIVING, part.arriving),
            (LinkRow.RESULT, part.result),
        ):
            words[row + at], words[row + at + 1] = place.offset, place.size_bytes  # its bytes stand behind it
            bases[row + at] = place.base

    def forget_in_child(self) -> None:
        # A forked child must not keep a killed rank's links open. Who held the lock when it was forked is not here.
        self._close_sockets()


def shut(sockets: Iterable[socket.socket]) -> None:
    """Lets nothing arrive any more, and ends what waits for it."""
    for link in sockets:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


def _forget_in_child() -> None:
    for links in list(_alive):
        links.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
