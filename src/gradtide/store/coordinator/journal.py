"""The coordinator's journal: its whole state in one file, replaced and fsynced before anybody is told.

The state is small (a table of 1,024 shards is some 10 kB), so each entry is all of it: nothing to replay, and a
file is either the old state or the new one, with a checksum. One that can't be written, on a disk that is full, leaves
the old one.
"""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Self

import msgspec

from gradtide.checkpoint.places import sync_folder
from gradtide.errors import DataError, OutputError
from gradtide.store.coordinator.membership import Record

__all__ = ["Journal", "pack", "unpack"]

_MAGIC = b"gradtide journal 2\n"
_FIRST_MAGIC = b"gradtide journal 1\n"  # without a checksum
_SUM_BYTES = 8


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
            return unpack(data)
        except (ValueError, msgspec.MsgspecError):
            raise DataError(
                f"{self.path} is no journal of a coordinator, or not whole; give the right file, or a new name"
            ) from None

    def write(self, record: Record) -> None:
        """On disk when this returns."""
        fresh = f"{self.path}.new"
        try:
            number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                left = memoryview(pack(record))
                while left:
                    left = left[os.write(number, left) :]
                os.fsync(number)
            finally:
                os.close(number)
            os.replace(fresh, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise OutputError(f"the journal {self.path} can't be written: {error.strerror}; free some room") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pack(record: Record) -> bytes:
    """A journal's bytes."""
    content = msgspec.msgpack.encode(record)
    return _MAGIC + _sum(content) + content


def unpack(data: bytes) -> Record:
    """What they say; ValueError or MsgspecError if they are no journal, or not whole."""
    return msgspec.msgpack.decode(_content(data), type=Record)


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SUM_BYTES).digest()


def _content(data: bytes) -> bytes:
    """What a journal says; ValueError if it is none, or not whole."""
    if data.startswith(_FIRST_MAGIC):
        return data[len(_FIRST_MAGIC) :]
    content = data[len(_MAGIC) + _SUM_BYTES :]
    if data[: len(_MAGIC) + _SUM_BYTES] != _MAGIC + _sum(content):
        raise ValueError
    return content
