"""Where a fork server takes the names of more servers to make: a socket in the folder of a store."""

import contextlib
import os
import socket
from collections.abc import Callable

import msgspec

from gradtide.store.scaling import STARTER

__all__ = ["Starter"]

_MESSAGE_BYTES = 1 << 16
_MOST = 256  # servers at once
_HEAR_S = 1.0


class Starter:
    """Of one group of processes. Only who can enter the folder can reach it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._path = f"{folder}/{STARTER}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        self._listener.listen(8)

    def fileno(self) -> int:
        return self._listener.fileno()

    def hear(self, start: Callable[[str, tuple[str, ...]], None]) -> None:
        """Somebody has come, with a list of names."""
        asker, _ = self._listener.accept()
        with asker, contextlib.suppress(OSError):
            asker.settimeout(_HEAR_S)
            try:
                names = msgspec.json.decode(asker.recv(_MESSAGE_BYTES), type=tuple[str, ...])
            except msgspec.MsgspecError:
                asker.send(b"that is no list of names")
                return
            if len(names) > _MOST or not all(name.isascii() and name.replace("-", "").isalnum() for name in names):
                asker.send(
                    f"a server's name has letters, digits and hyphens, and at most {_MOST} start at once".encode()
                )
                return
            start(self.folder, names)
            asker.send(b"ok")

    def close_here(self) -> None:
        """In a process that was made by fork."""
        self._listener.close()

    def close(self) -> None:
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
