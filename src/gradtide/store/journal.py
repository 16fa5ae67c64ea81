"""The coordinator's journal: its whole state in one file, replaced and fsynced before anybody is told.

The state is small (a table of 1,024 shards is some 10 kB), so each entry is all of it: nothing to replay, and a
file is either the old state or the new one.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gradtide.errors import DataError, OutputError
from gradtide.store.membership import Record

__all__ = ["Journal"]

_MAGIC = b"gradtide journal 1\n"


class Journal:
    """One coordinator's at a time: whoever has the file's lock."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise OutputError(f"another coordinator has the journal {self.path}; stop it first") from None
        except OSError as error:
            raise OutputError(f"the journal {self.path} can't be opened: {error.strerror}") from None

    def read(self) -> Record | None:
        """What was written last; None when nothing ever was."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            if not data.startswith(_MAGIC):
                raise ValueError
            return msgspec.msgpack.decode(data[len(_MAGIC) :], type=Record)
        except (ValueError, msgspec.MsgspecError):
            raise DataError(f"{self.path} is no journal of a coordinator; give the right file, or a new name") from None

    def write(self, record: Record) -> None:
        """On disk when this returns."""
        fresh = f"{self.path}.new"
        try:
            number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(number, _MAGIC + msgspec.msgpack.encode(record))
                os.fsync(number)
            finally:
                os.close(number)
            os.replace(fresh, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise OutputError(f"the journal {self.path} can't be written: {error.strerror}; free some room") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
