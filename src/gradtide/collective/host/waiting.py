"""How long somebody waits for other ranks, and the words for it: who is waited for, who has left, who is lost."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradtide.errors import CommunicationError, PeerLost
from gradtide.failure_line import find_where, message_with_notes

__all__ = ["NOTICE_S", "Wait", "called", "left_or_lost", "own_failure", "tell_wait"]

NOTICE_S = 30.0  # a wait that lasts as long is told, once
_PLACES = 4  # of so many it is said where they are


@dataclass(slots=True)
class Wait:
    """One wait: for what, until when, and when to tell somebody that it lasts."""

    what: str
    timeout_s: float
    notice_at: float  # never, once it was told
    deadline: float = 0.0
    alone: bool = False  # nobody but who is waited for matters
    look: Callable[[], None] | None = None  # called now and then; it may raise


def called(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def tell_wait(rank: int, seconds: float, missing: Sequence[int], what: str, places: Mapping[int, str]) -> None:
    """places: where in their code the missing are, of those who answered."""
    found = [f"rank {other} is at {place}" for other, place in list(places.items())[:_PLACES] if place]
    line = "; ".join([f"gradtide: rank {rank} has waited {seconds:g} s for {called(missing)} in {what}", *found])
    print(line, file=sys.stderr, flush=True)


def own_failure() -> str:
    """The error that this rank ends with, as a line; nothing if it only follows from what became of others."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None or isinstance(error, CommunicationError):
        return ""
    first, *_ = message_with_notes(error).splitlines() or [""]
    where = find_where(error)
    return f"{type(error).__name__}: {first}".rstrip(": ") + (f" ({where})" if where else "")


def left_or_lost(
    rank: int, gone: Sequence[int], left: Sequence[int], what: str, failures: Mapping[int, str] | None = None
) -> PeerLost:
    """What ends a wait for ranks that are gone; `left` are those of them that went in good order, `failures` the errors
    that others said they end with."""
    lost = [other for other in gone if other not in left]
    if lost:
        why = [f"rank {other} ended with {line}" for other, line in (failures or {}).items() if line][:_PLACES]
        said = f" ({', '.join(why)})" if why else ""
        return PeerLost(f"{called(lost)} died or left during {what}{said}; see its own output, then start a new group")
    verb = "has" if len(left) == 1 else "have"
    return PeerLost(
        f"{called(left)} {verb} finished (left the group) while rank {rank} waits in {what}: give all workers as many "
        "steps: share out the data with gradtide.shard(...), or train in model.join()"
    )
