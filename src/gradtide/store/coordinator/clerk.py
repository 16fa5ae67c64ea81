"""What a coordinator decides is written before anybody hears of it. Pure but for the writing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gradtide.errors import OutputError
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import Decree, Table, Welcome

__all__ = ["Clerk"]

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
        return [known for tell in told if (known := self._as_written(tell)) is not None]

    def _as_written(self, tell: Tell) -> Tell | None:
        """What may be told all the same: who lives is welcome, and who knows less than the journal hears of that."""
        written = self.membership.written
        match tell.message:
            case Welcome():
                return None if tell.message.token else tell
            case Table() if written is not None and written.table is not None:
                return Tell(tell.name, written.table)
            case Decree() if written is not None and written.decree is not None:
                return Tell(tell.name, written.decree)
        return None

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
