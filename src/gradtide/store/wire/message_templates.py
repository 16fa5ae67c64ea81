"""Messages that are like the one before but for a number or two: not encoded and decoded anew.

A number that is written as MessagePack's largest kind takes nine bytes, whatever it is. So it can be put into a message
that is encoded already (`Template`), and a message whose other bytes are those of an earlier one says nothing else that
is new (`Repeats`).
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from gradtide.store.wire.messages import Push, Pushed, decode, encode
from gradtide.transport.frames import whole

__all__ = ["Repeats", "Template"]

T = TypeVar("T")

_MOST_KNOWN = 256  # requests of one client
_UINT64 = 0xCF
_NUMBER = Struct(">BQ")
_MARKS = ((1 << 63) + 0x67726164, (1 << 63) + 0x74696465)
_put = _NUMBER.pack_into
_read = Struct(">Q").unpack_from


class Template:
    """What goes before a body: the frame's header and a message, of which only the sequence changes, or in an answer
    also its version's."""

    __slots__ = ("_first", "_second", "head")

    def __init__(self, message: Push | Pushed, body_bytes: int) -> None:
        marked = replace(message, sequence=_MARKS[0])
        if isinstance(marked, Pushed):
            marked = replace(marked, version=replace(marked.version, sequence=_MARKS[1]))
        self.head = bytearray(whole(encode(marked), body_bytes))
        self._first = self.head.index(_NUMBER.pack(_UINT64, _MARKS[0]))
        self._second = self.head.find(_NUMBER.pack(_UINT64, _MARKS[1]))

    def push(self, sequence: int) -> bytearray:
        _put(self.head, self._first, _UINT64, sequence)
        return self.head

    def pushed(self, sequence: int, version: int) -> bytearray:
        _put(self.head, self._first, _UINT64, sequence)
        _put(self.head, self._second, _UINT64, version)
        return self.head


@dataclass(slots=True, eq=False)
class Repeats(Generic[T]):
    """The pushes of one client, each with what is remembered of it. They differ after their sequence, if at all."""

    at: int = 0  # where the sequence begins
    known: dict[bytes, tuple[bytes, T]] = field(default_factory=dict)  # by what comes after it: what comes before it

    def find(self, data: memoryview) -> T | None:
        """What is remembered of the push that this one repeats, but for its sequence."""
        at = self.at
        found = self.known.get(bytes(data[at + 8 :]))
        return found[1] if found is not None and data[:at] == found[0] else None

    def sequence(self, data: memoryview) -> int:
        """Of a push that was found."""
        return int(_read(data, self.at)[0])

    def remember(self, data: memoryview, message: Push, what: T) -> None:
        """Unless its being asked again could not be told by its bytes."""
        at = bytes(data).find(_NUMBER.pack(_UINT64, message.sequence)) + 1
        if not at or not message.pull or message.after:
            return
        before, after, other = bytes(data[:at]), bytes(data[at + 8 :]), message.sequence ^ 1
        try:
            same = decode(before + _NUMBER.pack(_UINT64, other)[1:] + after) == replace(message, sequence=other)
        except (msgspec.DecodeError, ValueError):
            same = False
        if not same:
            return
        if at != self.at or len(self.known) >= _MOST_KNOWN:
            self.at, self.known = at, {}
        self.known[after] = (before, what)
