"""Bytes back to messages, but the large ones once: a table goes to everybody, and nobody can change it."""

from functools import lru_cache

from gradtide.store.wire import messages
from gradtide.store.wire.messages import Message

__all__ = ["decode"]

_LARGE_BYTES = 1024


def decode(data: bytes) -> Message:
    """What store/messages.py makes of it."""
    return _decode_once(data) if len(data) > _LARGE_BYTES else messages.decode(data)


@lru_cache(maxsize=64)
def _decode_once(data: bytes) -> Message:
    return messages.decode(data)
