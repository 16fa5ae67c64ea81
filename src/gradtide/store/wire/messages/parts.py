"""What messages are made of: keys, their pieces, and the layout of a request."""

from hashlib import blake2b
from typing import Literal

import msgspec

NO_WORKER = -1  # the `worker` of a client that is in no round


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """What all messages share: immutable, sent as a MessagePack array that begins with the tag."""


class Version(Wire, frozen=True, order=True):
    """Where a shard is in its one order of updates: a later epoch is later, whatever the sequence."""

    epoch: int = 0
    sequence: int = 0


# Of an update rule: what torch.optim is made with.
Argument = bool | int | float | str | tuple[float, ...] | None


class UpdateRule(Wire, frozen=True):
    """How contributions change a value: a name that updates.py knows, and its arguments as plain numbers."""

    name: str
    arguments: dict[str, Argument] = {}
    reduce: Literal["mean", "sum"] = "mean"  # of a round's contributions, before an optimizer's step


class KeySpec(Wire, frozen=True):
    """What the first `init` of a key fixed; every later one must say the same."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    update: UpdateRule
    delay: int | None = None  # None: async; 0: bsp; k: bounded:k
    reject_nan: bool = False
    compress: str = ""  # how its values are made smaller on their way, as Compress says it; "": not at all


class Slot(Wire, frozen=True):
    """A value whose key does not say what it is like: one that follows a message between servers, or lies beside a
    block's own."""

    dtype: str
    count: int
    scalar: bool = False  # a number rather than a row of one


class Piece(Wire, frozen=True):
    """`count` elements from `start` (within the block) of one block of a key."""

    key: str
    block: int
    start: int
    count: int
    size_bytes: int  # of what follows the message
    encoded: bool = False  # by the codec of its key


class Part(Wire, frozen=True):
    """The pieces of a request that one shard holds: the unit of atomicity."""

    shard: int
    pieces: tuple[Piece, ...]


def layout_name(parts: tuple[Part, ...]) -> bytes:
    """The name of a layout: a digest of what it says."""
    return blake2b(msgspec.msgpack.encode(parts), digest_size=12).digest()
