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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradtide.collective.host.extents import Base, Extent
from gradtide.collective.host.one_host import Call
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.operations import stripes
from gradtide.collective.links.parts import Exchange, LinkPart
from gradtide.errors import CommunicationError, PeerLost, PeerTimeout
from gradtide.kernels import BROKEN, DONE, KERNELS, WAITING, Deal, ExchangePlan, Head, LinkRow
from gradtide.transport.tls.sealed import meddling_with

__all__ = ["MOST_FLOWS", "Disagreement", "HostLinks", "Prepared", "end_sending", "shut"]

Words = npt.NDArray[np.int64]
_STAGE_BYTES = 1 << 20  # of each link: what has come and waits to be added up stays in the cache
_GRAIN_BYTES = 32 << 10
_MOST_BYTES = 1 << 20
MOST_FLOWS = 8  # between two ranks
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
    """This rank's links to ranks of other hosts, for one exchange at a time; several flows each, if one is too slow."""

    def __init__(self, rail: Sequence[int], flows: list[dict[int, socket.socket]], watch: RankWatch) -> None:
        """rail: the rank of each other host that has this one's number there, if it drives.

        flows: sockets by rank, of each flow; the list is kept, and add_flow() extends it.
        """
        self._rail, self._mesh, self._watch = list(rail), sorted(flows[0]), watch
        self._flows, self._used, count = flows, len(flows), len(flows[0])
        self._ranks = {link.fileno(): rank for rank, link in flows[0].items()}
        self._stages: list[npt.NDArray[np.uint8]] = []  # of each flow
        self._counters = MOST_FLOWS * count  # after the polls: how many exchanges there were, on the rail and on all
        self._first = self._counters + 2  # where the words of the first flow begin
        self._heads = Deal.WORDS + count * LinkRow.WORDS
        self._width = self._heads + 2 * count * Head.WORDS  # of the words of each flow
        self._words = np.zeros(self._first + MOST_FLOWS * self._width, np.int64)
        self._deal = self._words[self._first :]
        self._address, self._turn = int(self._words.ctypes.data), threading.Lock()
        self._deal_address = self._address + 8 * self._first
        self._exchange, self._resume = KERNELS.EXCHANGE.entry, KERNELS.RESUME_EXCHANGE.entry
        for sockets in flows:
            self._make_ready(sockets)
        _alive.add(self)

    # --- Flows ---

    @property
    def flows(self) -> int:
        """How many there are."""
        return len(self._flows)

    @property
    def used_flows(self) -> int:
        return self._used

    def use_flows(self, count: int) -> None:
        """All ranks use as many: what was planned for another number must be planned anew."""
        assert 1 <= count <= len(self._flows)
        self._used = count

    def drop_unused_flows(self) -> None:
        with self._turn:
            while len(self._flows) > self._used:
                self._stages.pop()
                for link in self._flows.pop().values():
                    link.close()

    def add_flow(self, sockets: dict[int, socket.socket]) -> None:
        """Another link to each rank; it is not used yet."""
        self._make_ready(sockets)
        self._flows.append(sockets)

    def _make_ready(self, sockets: dict[int, socket.socket]) -> None:
        for link in sockets.values():
            link.setblocking(False)
        self._stages.append(np.empty(len(sockets) * _STAGE_BYTES, np.uint8))

    # --- Exchanges ---

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
            return self._exchange(plan, tensor, out, scratch) if self._flows else BROKEN

    def go_on(self) -> int:
        """Another turn of it."""
        with self._turn:
            self._deal[[Deal.SLEEP_MS, Deal.TURN_NS]] = _SLEEP_MS, _TURN_NS
            if not self._flows:
                raise CommunicationError("the group was closed during an operation; wait for what you ask for")
            return int(self._resume(self._deal_address))

    def finish(self, code: int) -> None:
        """Sees an exchange that did not end at once to its end."""
        words, moved = self._deal, 0
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
            raise self._meddling() or self._watch.reason() or self._broken()
        if code != DONE:
            raise Disagreement

    def _awaited(self) -> int:
        """The rank that is furthest behind."""
        count, coming, flow = int(self._deal[Deal.LINKS]), np.zeros(int(self._deal[Deal.LINKS]), np.int64), self._deal
        while True:
            rows = flow[Deal.WORDS : self._heads].reshape(-1, LinkRow.WORDS)[:count]
            coming += rows[:, LinkRow.ARRIVING_BYTES] + rows[:, LinkRow.RESULT_BYTES] - rows[:, LinkRow.RECEIVED]
            if not flow[Deal.NEXT]:
                return self._rank_of(int(coming.argmax()))
            flow = flow[self._width :]

    def _rank_of(self, link: int) -> int:
        return self._ranks[int(self._deal[Deal.WORDS + link * LinkRow.WORDS + LinkRow.DESCRIPTOR])]

    def _meddling(self) -> PeerLost | None:
        rank = self._rank_of(int(self._deal[Deal.BROKEN_LINK]))
        found = (meddling_with(flow[rank]) for flow in self._flows if rank in flow)
        why = next(filter(None, found), "")
        return self._watch.meddling(rank, why) if why else None

    def _broken(self) -> PeerLost:
        rank, error = self._rank_of(int(self._deal[Deal.BROKEN_LINK])), int(self._deal[Deal.ERROR])
        return PeerLost(f"rank {rank} is gone (its link: {os.strerror(error)}); see its own output for why")

    def close(self) -> None:
        """What was sent still arrives. An exchange that another thread is in ends first, at once."""
        if not self._turn.acquire(blocking=False):
            for sockets in self._flows:
                shut(sockets.values())
            self._turn.acquire()
        self._close_sockets()
        self._turn.release()

    def _close_sockets(self) -> None:
        end_sending(link for sockets in self._flows for link in sockets.values())
        while self._flows:
            for link in self._flows.pop().values():
                link.close()

    # --- From layouts to words ---

    def prepare(self, layout: Exchange) -> Prepared:
        cut = stripes(layout, self._used)
        words, bases = np.zeros((2, len(cut), self._width), np.int64)
        for flow, stripe in enumerate(cut):
            self._prepare_flow(flow, stripe, words[flow], bases[flow])
            if flow + 1 < len(cut):
                words[flow, Deal.NEXT] = self._deal_address + 8 * self._width * (flow + 1)
        return self._plan(words.reshape(-1), bases.reshape(-1), 8 * (self._counters + layout.mesh))

    def _prepare_flow(self, flow: int, layout: Exchange, words: Words, bases: Words) -> None:
        share, blocks, address = layout.share, layout.share.blocks, self._deal_address + 8 * self._width * flow

        def put(at: int, place: Extent) -> None:
            words[at], bases[at] = place.offset, place.base

        words[Deal.LINKS], words[Deal.ROWS] = len(layout.parts), address + 8 * Deal.WORDS
        words[Deal.POLLS], words[Deal.ME] = self._address, layout.me
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
        if flow:
            words[Deal.HEARD] = len(layout.parts)  # all agree, or this flow is not used
        ranks = self._mesh if layout.mesh else self._rail
        for link, (rank, part) in enumerate(zip(ranks, layout.parts, strict=True)):
            self._prepare_link(flow, link, rank, part, words, bases)

    def _plan(self, words: Words, bases: Words, counter: int) -> Prepared:
        places = tuple(np.flatnonzero(bases == base) for base in (Base.TENSOR, Base.OUT, Base.SCRATCH))
        lists = [number for place in places for number in (place.ctypes.data, len(place))]
        plan = np.array([self._deal_address, len(words), self._address + counter, 0, *lists], np.int64)
        whole = np.concatenate([plan, words])
        return Prepared(int(whole.ctypes.data), whole, places)

    def _prepare_link(self, flow: int, link: int, rank: int, part: LinkPart, words: Words, bases: Words) -> None:
        row, address = Deal.WORDS + link * LinkRow.WORDS, self._deal_address + 8 * self._width * flow
        head, heard = (self._heads + Head.WORDS * (link + n * len(self._mesh)) for n in (0, 1))
        words[row + LinkRow.DESCRIPTOR] = self._flows[flow][rank].fileno()
        words[row + LinkRow.HEAD], words[row + LinkRow.HEARD] = address + 8 * head, address + 8 * heard
        words[row + LinkRow.STAGE] = self._stages[flow].ctypes.data + link * _STAGE_BYTES
        words[row + LinkRow.SECOND_BYTES] = part.second_bytes
        words[head + Head.FIRST_BYTES] = part.first.size_bytes
        if flow:  # heads go over the first
            words[[row + LinkRow.SENT, row + LinkRow.RECEIVED]] = 8 * Head.WORDS
        for at, place in (
            (LinkRow.FIRST, part.first),
            (LinkRow.ARRIVING, part.arriving),
            (LinkRow.RESULT, part.result),
        ):
            words[row + at], words[row + at + 1] = place.offset, place.size_bytes  # its bytes stand behind it
            bases[row + at] = place.base

    def forget_in_child(self) -> None:
        # A forked child must not keep a killed rank's links open, nor shut its parent's. Who held the lock when it was
        # forked is not here.
        while self._flows:
            for link in self._flows.pop().values():
                link.close()


def end_sending(sockets: Iterable[socket.socket]) -> None:
    """Of all before any is closed: who closes an encrypted one waits for what it has sent to leave."""
    for link in sockets:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_WR)


def shut(sockets: Iterable[socket.socket]) -> None:
    """Lets nothing arrive any more, and ends what waits for it."""
    for link in sockets:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


def _forget_in_child() -> None:
    for links in list(_alive):
        links.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
