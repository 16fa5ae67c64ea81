"""What a coordinator decides is written before anybody hears of it. Pure but for the writing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gradtide.errors import OutputError
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import Welcome

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
        return [tell for tell in told if isinstance(tell.message, Welcome) and not tell.message.token]

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
