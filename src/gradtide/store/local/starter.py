"""Where a fork server is asked for more servers: a socket in the folder of a store."""

import contextlib
import os
import socket
from collections.abc import Callable

import msgspec

from gradtide.store.local.roles import Role
from gradtide.store.local.scaling import STARTER, More

__all__ = ["Starter"]

_MESSAGE_BYTES = 1 << 16
_MOST = 256  # servers at once
_HEAR_S = 1.0


class Starter:
    """Of one group of processes. Only who can enter the folder can reach it."""

    def __init__(self, folder: str, like: Role) -> None:
        self.folder, self.like = folder, like
        self._path = f"{folder}/{STARTER}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._path)
        self._listener.listen(8)

    def fileno(self) -> int:
        return self._listener.fileno()

    def hear(self, start: Callable[[More], tuple[str, ...]]) -> None:
        """Somebody has come with a wish; whatever else it is, is not answered."""
        asker, _ = self._listener.accept()
        with asker, contextlib.suppress(OSError, msgspec.MsgspecError):
            asker.settimeout(_HEAR_S)
            wish = msgspec.json.decode(asker.recv(_MESSAGE_BYTES), type=More)
            if 0 < wish.count <= _MOST:
                asker.send(msgspec.json.encode(start(wish)))

    def close_here(self) -> None:
        """In a process that was made by fork."""
        self._listener.close()

    def close(self) -> None:
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
