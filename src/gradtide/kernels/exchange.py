"""One exchange between hosts over sockets: all links at once, both ways, added up while the rest arrives.

On every link goes, in each direction: a head that says what is asked for, then the first part, then the second. The
first part is there from the beginning (what a peer is to add up, or to have). The second is this host's own share of
the result: it leaves as far as it is ready, which is how an all-reduce overlaps its two halves. It waits until every
peer's head is here and asks for the same. So after a mismatch no second part is on its way, and what is left of the
first parts is read and dropped: the links are clean again. Nor has anything been written to the caller's memory: before
all have agreed, what arrives goes into stages, or waits.

There may be several flows to each peer. An exchange then is several, each of a stripe of everything, and the first flow
has the heads: nothing goes over the others before all have agreed there, so a mismatch leaves them as they were.

No exchange waits for ever: it comes back after a bounded time with WAITING, and goes on where it was when called again.
"""

from typing import Any

from numba.extending import register_jitable

from gradtide.kernels.atomics import call_block, copy, set_word, word
from gradtide.kernels.sockets import AGAIN, MORE, nanoseconds, poll_all, receive_some, send_some
from gradtide.kernels.words import BROKEN, DONE, MISMATCHED, WAITING, Deal, ExchangePlan, Head, LinkRow

__all__ = ["exchange", "resume_exchange"]

_READABLE, _WRITABLE = 1 << 32, 4 << 32  # of a pollfd as one little-endian word
_NOBODY = 0xFFFFFFFF  # a descriptor of -1
_BLOCK_BYTES = 16 << 10  # three hosts and more: a reduction works through blocks that stay in the first-level cache
_COPY_BYTES = 256 << 10  # of our own, in one go: half of it stays in the second-level cache
_HEAD_BYTES = 8 * Head.WORDS


def exchange(plan: Any, tensor: Any, out: Any, scratch: Any) -> Any:
    """Begins an exchange by a plan, on these addresses; the rest is as below."""
    deal, counter = word(plan, ExchangePlan.DEAL), word(plan, ExchangePlan.SEQUENCE)
    sequence = word(counter, 0) + 1
    set_word(counter, 0, sequence)
    copy(deal, plan + 8 * ExchangePlan.TEMPLATE, 8 * word(plan, ExchangePlan.COUNT))
    _add(deal, word(plan, ExchangePlan.TENSOR_AT), word(plan, ExchangePlan.TENSOR_COUNT), tensor)
    _add(deal, word(plan, ExchangePlan.OUT_AT), word(plan, ExchangePlan.OUT_COUNT), out)
    _add(deal, word(plan, ExchangePlan.SCRATCH_AT), word(plan, ExchangePlan.SCRATCH_COUNT), scratch)
    for link in range(word(deal, Deal.LINKS)):
        head = word(_row(deal, link), LinkRow.HEAD)
        set_word(head, Head.SEQUENCE, sequence)
        set_word(head, Head.SIGNATURE, word(plan, ExchangePlan.SIGNATURE))
    return _run(deal)


def resume_exchange(deal: Any) -> Any:
    """Goes on with it: DONE, WAITING, MISMATCHED or BROKEN."""
    return _run(deal)


@register_jitable
def _add(words: Any, places: Any, count: Any, address: Any) -> None:
    for number in range(count):
        at = word(places, number)
        set_word(words, at, word(words, at) + address)


@register_jitable
def _row(deal: Any, link: Any) -> Any:
    return word(deal, Deal.ROWS) + 8 * LinkRow.WORDS * link


@register_jitable
def _next(deal: Any, flow: Any) -> Any:
    """The next flow of an exchange; 0 if there is none that may be used yet."""
    return word(flow, Deal.NEXT) if _agreed(deal) else 0


@register_jitable
def _run(deal: Any) -> Any:
    until = nanoseconds() + word(deal, Deal.TURN_NS)
    while True:
        moved = _move_flows(deal)
        if moved < 0:
            return BROKEN
        if moved == 0:  # the wire has nothing for us to do
            moved = _copy_some(deal)
        set_word(deal, Deal.MOVED, word(deal, Deal.MOVED) + moved)
        if _all_done(deal):
            return MISMATCHED if word(deal, Deal.REFUSED) else DONE
        if moved == 0 and _sleep(deal) <= 0:
            return WAITING
        if nanoseconds() > until:
            return WAITING


@register_jitable
def _move_flows(deal: Any) -> Any:
    """How many bytes went either way or were added up; -1 if a link is broken, which is then noted."""
    total, flow = 0, deal
    while flow:
        moved = _move_all(deal, flow)
        if moved < 0:
            return -1
        total += moved + _reduce_arrived(flow)
        flow = _next(deal, flow)
    return total


@register_jitable
def _move_all(deal: Any, flow: Any) -> Any:
    total = 0
    for link in range(word(flow, Deal.LINKS)):
        row = _row(flow, link)
        sent = _send(flow, row)
        received = _receive(flow, link, row) if sent >= 0 else 0
        if sent < 0 or received < 0:
            set_word(deal, Deal.BROKEN_LINK, link)
            set_word(deal, Deal.ERROR, -min(sent, received))
            return -1
        total += sent + received
    return total


@register_jitable
def _agreed(deal: Any) -> Any:
    return word(deal, Deal.HEARD) == word(deal, Deal.LINKS) and word(deal, Deal.REFUSED) == 0


@register_jitable
def _refused(deal: Any) -> Any:
    """Whether everybody has been heard, and not all ask for the same."""
    return word(deal, Deal.HEARD) == word(deal, Deal.LINKS) and word(deal, Deal.REFUSED) != 0


# --- Sending ---


@register_jitable
def _send(deal: Any, row: Any) -> Any:
    """All that can leave now."""
    begin, first = word(row, LinkRow.SENT), _HEAD_BYTES + word(row, LinkRow.FIRST_BYTES)
    sent = begin
    set_word(row, LinkRow.IS_FULL, 0)
    while True:
        more = 0
        if sent < _HEAD_BYTES:
            at, left = word(row, LinkRow.HEAD) + sent, _HEAD_BYTES - sent
            more = MORE if first > _HEAD_BYTES else 0
        elif sent < first:
            at, left = word(row, LinkRow.FIRST) + sent - _HEAD_BYTES, first - sent
        else:
            ready = min(word(deal, Deal.READY), word(row, LinkRow.SECOND_BYTES)) if _agreed(deal) else 0
            at, left = word(deal, Deal.MINE) + sent - first, ready - (sent - first)
        if left <= 0:
            break
        if _is_kept(deal, row):
            left = min(left, _COPY_BYTES)
        count = send_some(word(row, LinkRow.DESCRIPTOR), at, min(left, word(deal, Deal.MOST_BYTES)), more)
        if count < 0:
            if count != AGAIN:
                return count
            set_word(row, LinkRow.IS_FULL, 1)
            break
        sent += count
        _copy_sent(deal, row, sent - _HEAD_BYTES)
        if count < left and count < word(deal, Deal.MOST_BYTES):  # its buffer is full: the next would be in vain
            set_word(row, LinkRow.IS_FULL, 1)
            break
        if sent - begin >= word(deal, Deal.MOST_BYTES):  # let the other direction have its turn
            break
    set_word(row, LinkRow.SENT, sent)
    return sent - begin


# --- Receiving ---


@register_jitable
def _receive(deal: Any, link: Any, row: Any) -> Any:
    """All that has come and has a place."""
    begin = word(row, LinkRow.RECEIVED)
    received = begin
    while True:
        at, left = _place(deal, row, received)
        if left <= 0:
            break
        count = receive_some(word(row, LinkRow.DESCRIPTOR), at, min(left, word(deal, Deal.MOST_BYTES)))
        if count == AGAIN:
            break
        if count <= 0:
            return count if count else -104  # ECONNRESET
        received += count
        set_word(row, LinkRow.RECEIVED, received)
        if received == _HEAD_BYTES:
            if not _hear(deal, row):
                return -71  # EPROTO
        elif count < left:
            break
        if received - begin >= word(deal, Deal.MOST_BYTES):
            break
    if word(deal, Deal.FOLLOWS) == link + 1 and _agreed(deal):  # this link brings our share: ready as far as it came
        set_word(deal, Deal.READY, min(max(0, received - _HEAD_BYTES), word(deal, Deal.MINE_BYTES)))
    return received - begin


@register_jitable
def _place(deal: Any, row: Any, received: Any) -> Any:
    """Where the next bytes go, and how many have room there."""
    if received < _HEAD_BYTES:
        return word(row, LinkRow.HEARD) + received, _HEAD_BYTES - received
    first, come = word(row, LinkRow.ARRIVING_BYTES), received - _HEAD_BYTES
    if _refused(deal) or word(row, LinkRow.DIFFERS):
        return word(row, LinkRow.STAGE), min(first - come, word(deal, Deal.STAGE_BYTES))
    if come >= first:
        # Before all are heard, what follows may as well be the other end's next exchange, after a mismatch.
        left = word(row, LinkRow.RESULT_BYTES) - (come - first) if _agreed(deal) else 0
        return word(row, LinkRow.RESULT) + come - first, left
    if word(row, LinkRow.ARRIVING):
        return word(row, LinkRow.ARRIVING) + come, first - come if _agreed(deal) else 0
    room, within = word(deal, Deal.STAGE_BYTES), come % word(deal, Deal.STAGE_BYTES)
    free = min(room - within, word(deal, Deal.READY) + room - come)
    return word(row, LinkRow.STAGE) + within, min(first - come, free)


@register_jitable
def _hear(deal: Any, row: Any) -> Any:
    """A peer's head is here: whether it is one of ours, and notes if it asks for something else."""
    mine, theirs = word(row, LinkRow.HEAD), word(row, LinkRow.HEARD)
    if word(mine, Head.SEQUENCE) != word(theirs, Head.SEQUENCE) or word(theirs, Head.FIRST_BYTES) < 0:
        return False
    set_word(deal, Deal.HEARD, word(deal, Deal.HEARD) + 1)
    asked = word(theirs, Head.FIRST_BYTES)
    if word(mine, Head.SIGNATURE) != word(theirs, Head.SIGNATURE) or asked != word(row, LinkRow.ARRIVING_BYTES):
        set_word(row, LinkRow.DIFFERS, 1)
        set_word(row, LinkRow.ARRIVING_BYTES, asked)
        set_word(deal, Deal.REFUSED, word(deal, Deal.REFUSED) + 1)
    return True


# --- Adding up ---


@register_jitable
def _reduce_arrived(deal: Any) -> Any:
    """Adds up what has come from all, in the order of the hosts, however it came: as many bytes are ready more."""
    if word(deal, Deal.COMBINE) == 0 or not _agreed(deal):
        return 0
    ready, whole = word(deal, Deal.READY), word(deal, Deal.MINE_BYTES)
    arrived = whole
    for link in range(word(deal, Deal.LINKS)):
        row = _row(deal, link)
        arrived = min(arrived, word(row, LinkRow.RECEIVED) - _HEAD_BYTES)
        if word(deal, Deal.OVERWRITES):  # what is still to leave
            arrived = min(arrived, word(row, LinkRow.SENT) - _HEAD_BYTES)
    arrived = arrived // word(deal, Deal.ITEM) * word(deal, Deal.ITEM)
    if arrived <= ready or (arrived < whole and arrived - ready < word(deal, Deal.GRAIN_BYTES)):
        return 0
    begin = ready
    while begin < arrived:
        within = begin % word(deal, Deal.STAGE_BYTES)
        length = min(arrived - begin, word(deal, Deal.STAGE_BYTES) - within)
        if word(deal, Deal.LINKS) > 1:
            length = min(length, _BLOCK_BYTES)
        _reduce_block(deal, begin, within, length // word(deal, Deal.ITEM))
        begin += length
    set_word(deal, Deal.READY, arrived)
    return arrived - ready


@register_jitable
def _source(deal: Any, host: Any, begin: Any, within: Any) -> Any:
    """Where a host's contribution lies: our own in its tensor, the others' in the stages of their links."""
    me = word(deal, Deal.ME)
    if host == me:
        return word(deal, Deal.OWN) + begin
    return word(_row(deal, host if host < me else host - 1), LinkRow.STAGE) + within


@register_jitable
def _reduce_block(deal: Any, begin: Any, within: Any, count: Any) -> None:
    """Host 0's, then host 1's and so on. Our own may lie where the result goes, so until it has been taken the sum is
    kept in the first host's stage."""
    hosts, target = word(deal, Deal.LINKS) + 1, word(deal, Deal.MINE) + begin
    left = _source(deal, 0, begin, within)
    for host in range(1, hosts):
        last = host == hosts - 1
        out = target if last or host >= word(deal, Deal.ME) else _source(deal, 0, begin, within)
        function = word(deal, Deal.LAST) if last else word(deal, Deal.COMBINE)
        call_block(function, out, left, _source(deal, host, begin, within), 0, count, word(deal, Deal.DIVISOR))
        left = out


@register_jitable
def _copy_some(deal: Any) -> Any:
    """Of a share that is this host's own contribution: a part of it, then the links have their turn."""
    flow = deal
    while flow and _agreed(deal):
        left = word(flow, Deal.MINE_BYTES) - word(flow, Deal.READY)
        if word(flow, Deal.COPIES) and left > 0:
            length = min(left, _COPY_BYTES)
            _copy_up_to(flow, word(flow, Deal.READY) + length)
            return length
        flow = _next(deal, flow)
    return 0


@register_jitable
def _is_kept(deal: Any, row: Any) -> Any:
    """Whether the first part that leaves is what this host keeps a copy of."""
    return word(deal, Deal.COPIES) != 0 and word(row, LinkRow.FIRST) == word(deal, Deal.OWN)


@register_jitable
def _copy_sent(deal: Any, row: Any, sent: Any) -> None:
    """Of a contribution that others get too: what has just left, while it is in the cache."""
    if _is_kept(deal, row) and _agreed(deal):
        _copy_up_to(deal, min(sent, word(deal, Deal.MINE_BYTES)))


@register_jitable
def _copy_up_to(deal: Any, end: Any) -> None:
    ready = word(deal, Deal.READY)
    if ready < end:
        copy(word(deal, Deal.MINE) + ready, word(deal, Deal.OWN) + ready, end - ready)
        set_word(deal, Deal.READY, end)


# --- Ending and waiting ---


@register_jitable
def _all_done(deal: Any) -> Any:
    refused = _refused(deal)
    if not refused and not _agreed(deal):
        return False
    flow = deal
    while flow:
        if not _is_done(flow, refused):
            return False
        flow = _next(deal, flow)
    return True


@register_jitable
def _is_done(flow: Any, refused: Any) -> Any:
    if not refused and word(flow, Deal.READY) < word(flow, Deal.MINE_BYTES):
        return False
    for link in range(word(flow, Deal.LINKS)):
        row = _row(flow, link)
        sent = word(row, LinkRow.SENT) - _HEAD_BYTES - word(row, LinkRow.FIRST_BYTES)
        received = word(row, LinkRow.RECEIVED) - _HEAD_BYTES - word(row, LinkRow.ARRIVING_BYTES)
        if not refused:
            sent -= word(row, LinkRow.SECOND_BYTES)
            received -= word(row, LinkRow.RESULT_BYTES)
        if sent < 0 or received < 0:
            return False
    return True


@register_jitable
def _sleep(deal: Any) -> Any:
    """Until a link can go on, for a bounded time."""
    entries, count, flow = word(deal, Deal.POLLS), 0, deal
    while flow:
        for link in range(word(flow, Deal.LINKS)):
            row = _row(flow, link)
            _, left = _place(flow, row, word(row, LinkRow.RECEIVED))
            events = _READABLE if left > 0 else 0
            if word(row, LinkRow.IS_FULL):
                events |= _WRITABLE
            # Who is waited for in no way may have left already: poll would come back at once, again and again.
            set_word(entries, count, word(row, LinkRow.DESCRIPTOR) | events if events else _NOBODY)
            count += 1
        flow = _next(deal, flow)
    return poll_all(entries, count, word(deal, Deal.SLEEP_MS))
