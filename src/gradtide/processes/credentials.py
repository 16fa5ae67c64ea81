"""Whose process is at the other end of a UNIX socket. The kernel says so: nobody can pretend."""

import socket
import struct

__all__ = ["user_of"]

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


def user_of(peer: socket.socket) -> int:
    """The user who connected, or who listens there."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
