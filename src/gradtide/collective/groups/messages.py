"""Messages between two ranks of a group: by tag, from anybody, now or in the background.

Each direction to each peer has a lane of its own: a receive that waits must not keep the send that it waits for. What
arrives goes to the first receive that was asked for with its tag; what nobody has asked for yet is kept.

Whoever takes messages from a rank also looks whether the time of any receive is over. One that ends without its message
ends all that are still asked for: what was sent for it would else be taken by the next one with its tag.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock

import torch

from gradtide.collective.groups.calls import Calls
from gradtide.collective.groups.many_hosts import ManyHosts
from gradtide.collective.groups.ordered_queue import OrderedQueue
from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.prepare import as_bytes, give_back, plain
from gradtide.collective.host.signature import sign
from gradtide.errors import CommunicationError, Mismatch, PeerLost, PeerTimeout
from gradtide.handle import Handle

__all__ = ["Messages", "Receipt"]

Tensor = torch.Tensor
_ANY = -1
_ENDING_S = 5.0  # threads whose links are closed end at once, or when they get a processor
_PAUSES_S = (20e-6, 1e-3)  # who receives from anybody looks at all channels in turn, first and longest pause between


class Receipt(Handle[Tensor]):
    """A receive. `source` is who sent it, once it is done."""

    def __init__(self, call: Call, tensor: Tensor, source: int | None, tag: int) -> None:
        super().__init__(f"a receive of {call.signature.text}")
        self.call, self.source, self.tag = call, source, tag
        self.deadline = time.monotonic() + call.timeout_s
        self._tensor, self._prepared = tensor, plain(tensor)
        self.data = as_bytes(self._prepared)

    def accept(self, note: Announcement, source: int, rank: int) -> None:
        """What was announced is in `data`, if it fits."""
        self.source = source
        if self.fits(note):
            self.finish(give_back(self._prepared, self._tensor))
        else:
            self.fail(
                Mismatch(
                    f"rank {source} sent {note.text}, but rank {rank} receives {self.call.signature.text}; "
                    "make them agree"
                )
            )

    def late(self) -> PeerTimeout:
        """What its deadline means."""
        limit, text = self.call.timeout_s, self.call.signature.text
        if self.source is None:
            return PeerTimeout(f"nobody sent within {limit:g} s what {self.what} waits for; is a rank stuck?")
        what = f"receive from rank {self.source}: {text}"
        return PeerTimeout(f"rank {self.source} did not answer within {limit:g} s ({what}); is it stuck?")

    def fits(self, note: Announcement) -> bool:
        return note.text == self.call.signature.text and note.size_bytes == len(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A message that nobody has asked for yet."""

    note: Announcement
    source: int
    data: Tensor


class Messages:
    """This rank's messages."""

    def __init__(self, backend: OneHost | ManyHosts, calls: Calls) -> None:
        self._backend, self._calls = backend, calls
        self._lanes: dict[tuple[str, int], OrderedQueue] = {}
        self._lock = Lock()
        self._asked: list[Receipt] = []
        self._kept: list[_Kept] = []
        self._over = False  # whether a receive ended without its message

    def close(self, timeout_s: float) -> None:
        """Gives messages that are being sent so long; what is still awaited is given up."""
        until = time.monotonic() + timeout_s
        for (direction, _), lane in list(self._lanes.items()):
            lane.close(max(0.0, until - time.monotonic()) if direction == "send" else 0)
        self._end_all(lambda asked: CommunicationError(f"the group was closed during {asked.what}; wait for it first"))

    def join(self) -> None:
        """Once links are closed: waits for the threads."""
        until = time.monotonic() + _ENDING_S
        for lane in list(self._lanes.values()):
            lane.join(max(0.0, until - time.monotonic()))

    def send(self, tensor: Tensor, to: int, tag: int, timeout_s: float | None, *, now: bool) -> Handle[None]:
        """`now`: the caller waits for it anyway. What the channel has room for is sent at once in any case."""
        self._calls.check()
        data = as_bytes(plain(tensor))
        call = self._call(tensor.dtype, tuple(tensor.shape), timeout_s)
        lane = self._lane("send", to)

        def work() -> None:
            self._calls.guarded(lambda: self._backend.send(call, data, to, tag))

        what = f"send of {call.signature.text}"
        if lane.enter():
            try:
                if now or lane.inside() or self._backend.has_room(len(data), to):
                    work()
                    handle: Handle[None] = Handle(what)
                    handle.finish(None)
                    return handle
            finally:
                lane.leave()
        return lane.submit(what, work)

    def receive(
        self,
        tensor: Tensor,
        source: int | None,
        tag: int,
        timeout_s: float | None,
        *,
        now: bool,
        any_shape: bool = False,
    ) -> Receipt:
        """`now`: the caller waits for it anyway. What is at hand is taken at once in any case.

        any_shape: the elements come as one row, as torch's backend sends them.
        """
        self._calls.check()
        shape = (tensor.numel(),) if any_shape else tuple(tensor.shape)
        receipt = Receipt(self._call(tensor.dtype, shape, timeout_s), tensor, source, tag)
        if self._ask(receipt):
            return receipt
        lane = self._lane("recv", _ANY if source is None else source)
        if (now or lane.inside() or source is not None) and lane.enter():
            try:
                self._fetch(receipt, at_hand=not now and not lane.inside())
            finally:
                lane.leave()
        if not receipt.done():  # who waits does so for the receipt: what this lane waits for may come later
            lane.submit(receipt.what, partial(self._fetch, receipt))
        return receipt

    # --- How ---

    def _call(self, dtype: torch.dtype, shape: tuple[int, ...], timeout_s: float | None) -> Call:
        return self._calls.call(sign("a message", dtype, shape), timeout_s)

    def _lane(self, direction: str, peer: int) -> OrderedQueue:
        return self._lanes.setdefault((direction, peer), OrderedQueue())

    def _ask(self, receipt: Receipt) -> bool:
        """Whether it has arrived already."""
        with self._lock:
            if self._over:
                raise self._calls.refusal()
            kept = next((k for k in self._kept if _belongs(receipt, k.note, k.source)), None)
            if kept is None:
                self._asked.append(receipt)
                return False
            self._kept.remove(kept)
        if receipt.fits(kept.note):
            receipt.data.copy_(kept.data)
        receipt.accept(kept.note, kept.source, self._backend.rank)
        return True

    def _fetch(self, receipt: Receipt, *, at_hand: bool = False) -> None:
        """Takes what arrives, whosever it is, until this one has arrived; or only what has begun to arrive."""
        source = receipt.source

        def fetch() -> None:
            if source is None:
                return self._from_anybody(receipt)
            while not receipt.done() and (not at_hand or self._backend.is_at_hand(source)):
                self._take_next(receipt.call, source)
            return None

        try:
            self._calls.guarded(fetch)
        except BaseException as error:  # of one that is arriving just now, who takes it sees to its end
            what_happened = error
            self._end_all(lambda asked: what_happened if asked is receipt else self._calls.refusal())

    def _end_all(self, why: Callable[[Receipt], BaseException]) -> None:
        """Of those for which nothing has come yet."""
        now = time.monotonic()
        with self._lock:
            asked, self._asked, self._over = self._asked, [], True
        for receipt in asked:
            receipt.fail(receipt.late() if receipt.deadline <= now else why(receipt))

    def _expire(self) -> None:
        """Ends receives whose time is over, and with them the group."""
        now = time.monotonic()
        with self._lock:
            late = min((asked for asked in self._asked if asked.deadline <= now), key=_deadline, default=None)
        if late is not None:
            self._calls.give_up(late.late())
            self._end_all(lambda asked: self._calls.refusal())
        if self._over:
            raise self._calls.refusal()

    def _looking(self, source: int) -> Callable[[], None]:
        """What is done now and then while messages of a rank are waited for. The time in which something of one comes
        does not count: it may be large, and before those that others wait for."""
        seen, seen_at = self._backend.progress(source), time.monotonic()

        def look() -> None:
            nonlocal seen, seen_at
            came, now = self._backend.progress(source), time.monotonic()
            if came != seen:
                with self._lock:
                    for asked in self._asked:
                        asked.deadline += now - seen_at if asked.source in (None, source) else 0.0
            seen, seen_at = came, now
            self._expire()

        return look

    def _from_anybody(self, receipt: Receipt) -> None:
        others = [rank for rank in range(self._backend.size) if rank != self._backend.rank]
        pause_s = _PAUSES_S[0]
        while not receipt.done():
            gone = self._backend.gone()  # looked at first: who sent before it left still counts
            if self._take_from_some(receipt, others):
                pause_s = _PAUSES_S[0]
            elif len(gone) == len(others) and not receipt.done():
                raise PeerLost(f"every other rank died or left during {receipt.what}; see their own output for why")
            else:
                self._expire()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSES_S[1])

    def _take_from_some(self, receipt: Receipt, others: list[int]) -> bool:
        took = False
        for source in others:
            lane = self._lane("recv", source)
            if not receipt.done() and lane.enter():  # or else somebody is at it already, and will find this receipt
                try:
                    if self._backend.is_announced(source):
                        self._take_next(receipt.call, source)
                        took = True
                finally:
                    lane.leave()
        return took

    def _take_next(self, call: Call, source: int) -> None:
        """Takes one message, for who asked for it or to be kept."""
        look = self._looking(source)
        note = self._backend.announced(Call(call.signature, math.inf, look), source)
        receipt = self._who_asked(note, source)
        if receipt is not None:
            return self._take_for(receipt, note, source, look)
        data = torch.empty(note.size_bytes, dtype=torch.uint8)
        self._backend.take(Call(call.signature, call.timeout_s, look), data, source)
        with self._lock:  # it may have been asked for since
            receipt = self._first_asked(note, source)
            if receipt is None:
                self._kept.append(_Kept(note, source, data))
                return None
        if receipt.fits(note):
            receipt.data.copy_(data)
        return receipt.accept(note, source, self._backend.rank)

    def _take_for(self, receipt: Receipt, note: Announcement, source: int, look: Callable[[], None]) -> None:
        """From here on nobody else ends it: nothing is written any more into memory that its owner has back."""
        call = Call(receipt.call.signature, receipt.call.timeout_s, look)
        try:
            data = receipt.data if receipt.fits(note) else torch.empty(note.size_bytes, dtype=torch.uint8)
            self._backend.take(call, data, source)
            receipt.accept(note, source, self._backend.rank)
        except BaseException as error:
            self._calls.give_up(error)
            receipt.fail(error)
            raise

    def _who_asked(self, note: Announcement, source: int) -> Receipt | None:
        with self._lock:
            return self._first_asked(note, source)

    def _first_asked(self, note: Announcement, source: int) -> Receipt | None:
        receipt = next((asked for asked in self._asked if _belongs(asked, note, source)), None)
        if receipt is not None:
            self._asked.remove(receipt)
        return receipt


def _deadline(receipt: Receipt) -> float:
    return receipt.deadline


def _belongs(receipt: Receipt, note: Announcement, source: int) -> bool:
    return receipt.tag == note.tag and receipt.source in (None, source)
