"""Who may say what: each message by the role that its sender has proven in the handshake. Pure.

Whoever holds the root key can prove any role; a worker's or an operator's key proves that one alone. Without a secret,
on a UNIX socket, everybody is of the same user, and is who he says he is.
"""

from gradtide.errors import FrameError
from gradtide.store.wire.messages import (
    Beat,
    CaughtUp,
    Fenced,
    Join,
    Lagging,
    Leave,
    Message,
    Promise,
    Replicate,
    Replicated,
    Resize,
    Snapshot,
)

__all__ = ["check_rights"]

_OF_SERVERS = (Replicate, Replicated, Snapshot, Fenced, Promise, CaughtUp, Lagging)
_OF_OPERATORS = (Resize,)
_SERVER, _OPERATOR = ("server", "coordinator"), ("operator", "server", "coordinator")


def check_rights(message: Message, role: str, name: str, *, is_server: bool = False) -> None:
    """Raises FrameError if somebody of this role and name may not say it. `is_server`: a beat, or a goodbye, in the
    name of one that has joined as a server."""
    allowed: tuple[str, ...]
    if isinstance(message, _OF_SERVERS):
        speaks_for, allowed = message.server, _SERVER
    elif isinstance(message, Join | Beat | Leave) and (is_server or getattr(message, "role", "") == "server"):
        speaks_for, allowed = message.name, _SERVER
    elif isinstance(message, _OF_OPERATORS):
        speaks_for, allowed = name, _OPERATOR
    else:
        return
    if role not in allowed or (name and speaks_for != name):
        who = f"{role} {name}".strip() or "somebody without a role"
        raise FrameError(f"{who} may not say {type(message).__name__}: that is for {allowed[0]} {speaks_for}".rstrip())
