"""Folders in the temporary directory that go with their process, and what a killed one left behind."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from typing import Self

__all__ = ["ScratchFolder"]

_PREFIX, _OWNER = "gradtide-", "owner"


class ScratchFolder:
    """A folder that only this user can enter. While its process lives it holds the lock of a file in it: a folder whose
    lock is free was left by one that was killed, and the next to make one removes it."""

    def __init__(self) -> None:
        _sweep()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)  # of mode 0700
        self._lock = os.open(f"{self.path}/{_OWNER}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(f"{self.path}/{_OWNER}.new", f"{self.path}/{_OWNER}")  # locked before anybody can find it

    def remove(self) -> None:
        """Once more does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _sweep() -> None:
    for entry in os.scandir(tempfile.gettempdir()):
        if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    lock = os.open(f"{folder}/{_OWNER}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
