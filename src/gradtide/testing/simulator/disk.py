"""A coordinator's disk: it may be full or slow for a while, and an old journal may be found on another."""

from gradtide.errors import OutputError
from gradtide.store.coordinator.journal import pack, unpack
from gradtide.store.coordinator.membership import Record
from gradtide.store.wire.messages import Decree, Gone, Message, Propose, Table, Welcome

__all__ = ["Disk"]


class Disk:
    """Keeps all that was ever written, the last being the journal."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = list(entries)
        self.full = 0  # by how many faults
        self.slow_s = 0.0  # how long a write takes
        self.record = unpack(entries[-1]) if entries else None

    @property
    def table(self) -> Table | None:
        return self.record.table if self.record is not None else None

    def write(self, record: Record) -> None:
        if self.full:
            raise OutputError("the journal can't be written: no space left on device; free some room")
        self.entries.append(pack(record))
        self.record = record

    def has(self, message: Message) -> bool:
        """Is what somebody is told here?"""
        record = self.record
        match message:
            case Table() if self.table is not None:
                return (message.term, message.epoch) <= (self.table.term, self.table.epoch)
            case Decree() | Propose() if record is not None:
                return message.number <= record.number
            case Gone() if record is not None:
                return message.absent.floor <= record.absent.floor
            case Welcome():
                known = record.numbers if record is not None else 0
                return not message.accepted or not message.token or message.incarnation <= known
        return False
