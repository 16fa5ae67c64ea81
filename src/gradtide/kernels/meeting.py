"""Counters in shared memory, and meetings of all ranks.

No kernel waits for ever: after a bounded spin it returns WAITING, the caller sleeps and checks that the peers live, and
calls it again to resume where it was.
"""

from typing import Any

from numba.extending import register_jitable

from gradtide.kernels.atomics import copy, core, fence, give_way, load, relax, set_word, store, wake, word
from gradtide.kernels.words import BUFFERS, DONE, LINE_BYTES, MISMATCHED, WAITING, Line, Me

__all__ = ["all_reached", "all_sign", "before_sleep", "line_of", "raise_counter", "show", "slot_of", "spin", "step"]

_BEARABLE = 2000  # meetings


@register_jitable
def _post(counter: Any, value: Any) -> None:
    """Raises a counter and wakes who sleeps on it. The fence orders "raise, then look for sleepers" against their
    "say that I sleep, then look at the value": one of the two sees the other."""
    store(counter, value)
    fence()
    if load(counter + 8 * Line.WATCHED):
        store(counter + 8 * Line.WATCHED, 0)
        wake(counter)


@register_jitable
def _comes_soon(counter: Any, value: Any, spins: Any) -> Any:
    """Whether the counter gets to value within a bounded spin."""
    for _ in range(spins):
        if load(counter) >= value:
            return True
        relax()
    return load(counter) >= value


@register_jitable
def _comes_later(counter: Any, value: Any, yields: Any) -> Any:
    """The same, giving way to others on this core."""
    for _ in range(yields):
        if load(counter) >= value:
            return True
        give_way()
    return load(counter) >= value


@register_jitable
def line_of(me: Any, rank: Any) -> Any:
    return word(me, Me.COUNTERS) + LINE_BYTES * rank


@register_jitable
def all_reached(me: Any, value: Any) -> Any:
    """Whether all get to value within a bounded wait.

    Two ranks on one core would give way to each other for ever, at 3 us a turn and with the next core idle: what is
    always ready to run is seldom moved. Who wakes from sleep is put on an idle core, so they had better sleep once.
    That is no use if there is none, so it is tried now and then only.
    """
    set_word(me, Me.AWAITED, value)
    for rank in range(word(me, Me.SIZE)):
        line = line_of(me, rank)
        if not _comes_soon(line, value, word(me, Me.SPINS)):
            if value > word(me, Me.BEARS) and word(line, Line.CORE) == core():
                set_word(me, Me.BEARS, value + _BEARABLE)
                return False
            if not _comes_later(line, value, word(me, Me.YIELDS)):
                return False
    return True


@register_jitable
def all_sign(me: Any, sequence: Any, signature: Any) -> Any:
    for rank in range(word(me, Me.SIZE)):
        if word(line_of(me, rank), Line.SIGNATURE + sequence % BUFFERS) != signature:
            return False
    return True


@register_jitable
def slot_of(me: Any, rank: Any, sequence: Any) -> Any:
    return word(me, Me.SLOTS) + (rank * BUFFERS + sequence % BUFFERS) * word(me, Me.SLOT_BYTES)


@register_jitable
def show(me: Any, sequence: Any, signature: Any, source: Any, size_bytes: Any) -> None:
    """Copies in, signs, and arrives."""
    line = line_of(me, word(me, Me.RANK))
    if size_bytes:
        copy(slot_of(me, word(me, Me.RANK), sequence), source, size_bytes)
    set_word(line, Line.SIGNATURE + sequence % BUFFERS, signature)
    set_word(line, Line.CORE, core())
    _post(line, sequence)


def step(me: Any, signature: Any, segment: Any, offset: Any) -> Any:
    """One meeting of all ranks: what they wrote before it is visible after it. PHASE is 1 while it waits."""
    sequence = word(me, Me.SEQUENCE) + 1
    if word(me, Me.PHASE) == 0:
        line, version = line_of(me, word(me, Me.RANK)), sequence % BUFFERS
        set_word(line, Line.SEGMENT + version, segment)
        set_word(line, Line.OFFSET + version, offset)
        show(me, sequence, signature, 0, 0)
        set_word(me, Me.PHASE, 1)
    if not all_reached(me, sequence):
        return WAITING
    set_word(me, Me.PHASE, 0)
    set_word(me, Me.SEQUENCE, sequence)
    return DONE if all_sign(me, sequence, signature) else MISMATCHED


def raise_counter(counter: Any, value: Any) -> Any:
    _post(counter, value)
    return DONE


def spin(counter: Any, value: Any, spins: Any, yields: Any) -> Any:
    return DONE if _comes_soon(counter, value, spins) or _comes_later(counter, value, yields) else WAITING


def before_sleep(counter: Any) -> Any:
    """Says that somebody is about to sleep on this counter; returns its value after that."""
    store(counter + 8 * Line.WATCHED, 1)
    fence()
    return load(counter)
