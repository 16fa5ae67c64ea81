"""What a coordinator decides is written before anybody hears of it. Pure but for the writing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gradtide.errors import OutputError
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import Decree, Table, Welcome

__all__ = ["Clerk", "LateClerk"]

_WRITE_AGAIN_S = 0.5
_log = logging.getLogger("gradtide.coordinator")


@dataclass(slots=True)
class Clerk:
    """Keeps the journal of a Membership by `to_disk`, which raises OutputError if it can't; None: there is none."""

    membership: Membership
    to_disk: Callable[[Record], None] | None
    unwritten: str = ""  # why the journal can't be written
    again_s: float = 0.0  # when to try again

    def tellable(self, told: list[Tell], now_s: float) -> list[Tell]:
        """What is not on disk nobody may be told; all is told again, since the next beat says what is not known."""
        if self._is_written(now_s):
            return told
        return [known for tell in told if (known := _as_written(tell, self.membership.written)) is not None]

    def write(self) -> None:
        """All that was decided, if it is not there already."""
        if self.to_disk is None:
            return
        before = self.membership.written
        record = self.membership.take_unwritten()
        if record is not None:
            try:
                self.to_disk(record)
            except OutputError:
                self.membership.written = before
                raise

    def _is_written(self, now_s: float) -> bool:
        """Whether all that was decided is in the journal. If the disk is full, the store goes on with what it has."""
        if self.unwritten and now_s < self.again_s:
            return False
        try:
            self.write()
        except OutputError as error:
            if not self.unwritten:
                _log.error("%s; until then the store goes on as it is: nobody can come or be replaced", error)
            self.unwritten, self.again_s = str(error), now_s + _WRITE_AGAIN_S
            return False
        if self.unwritten:
            _log.error("the journal is written again")
            self.unwritten = ""
        return True


@dataclass(slots=True)
class LateClerk:
    """The same where writing takes its time, and the coordinator goes on meanwhile: `take` what is to be written, and
    say whether it `wrote` or `failed`. What may not be told yet is told when it is written."""

    membership: Membership
    unwritten: str = ""  # why the journal can't be written
    _under_way: Record | None = None
    _again_s: float = 0.0
    _now_s: float = 0.0
    _held: list[Tell] = field(default_factory=list)  # until what is under way is written
    _next: list[Tell] = field(default_factory=list)  # until what comes then is

    def tellable(self, told: list[Tell], now_s: float) -> list[Tell]:
        """What is written, and what may be told all the same."""
        self._now_s = now_s
        if self.membership.unwritten() is None and self._under_way is None:
            return told
        at_once = [(tell, _as_written(tell, self.membership.written)) for tell in told]
        if not self.unwritten:
            self._next += [tell for tell, known in at_once if known is None or known != tell]
        return [known for _, known in at_once if known is not None]

    def take(self) -> Record | None:
        """What is to be written now, if anything."""
        if self._under_way is not None or self._now_s < self._again_s:
            return None
        record = self._under_way = self.membership.unwritten()
        if record is not None:
            self._held, self._next = self._next, []
        return record

    def wrote(self) -> list[Tell]:
        """What was taken last is in the journal; returns what may be told now."""
        assert self._under_way is not None
        self.membership.written, self._under_way = self._under_way, None
        if self.unwritten:
            _log.error("the journal is written again")
            self.unwritten = ""
        told, self._held = self._held, []
        if self.membership.unwritten() is None:
            told, self._next = told + self._next, []
        return told

    def failed(self, why: str, now_s: float) -> None:
        """It may be there or not. All is told again when it can be: the next beat says what is not known."""
        if not self.unwritten:
            _log.error("%s; until then the store goes on as it is: nobody can come or be replaced", why)
        self.unwritten, self._again_s, self._under_way = why, now_s + _WRITE_AGAIN_S, None
        self._held, self._next = [], []


def _as_written(tell: Tell, written: Record | None) -> Tell | None:
    """What may be told all the same: who lives is welcome, and who knows less than the journal hears of that."""
    match tell.message:
        case Welcome():
            return None if tell.message.token else tell
        case Table() if written is not None and written.table is not None:
            return Tell(tell.name, written.table)
        case Decree() if written is not None and written.decree is not None:
            return Tell(tell.name, written.decree)
    return None
