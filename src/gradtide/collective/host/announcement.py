"""What goes before a message: how long it is, its tag, and what it says of itself."""

import struct
from dataclasses import dataclass

import torch

__all__ = ["HEAD_BYTES", "TEXT_BYTES", "Announcement", "parse_head"]

_NUMBERS = struct.Struct("<qq")
_HEAD = struct.Struct("<qqq104s")  # the same, how long the text is, and its beginning: mostly all of it
HEAD_BYTES, TEXT_BYTES = _HEAD.size, 1024
_BEGINNING_BYTES = 104


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message is told apart by its tag; one that does not fit who receives it is a mismatch of the two texts."""

    size_bytes: int
    tag: int
    text: str

    def encoded(self) -> torch.Tensor:
        content = bytearray(_NUMBERS.pack(self.size_bytes, self.tag))
        content += self.text.encode()[:TEXT_BYTES]
        return torch.frombuffer(content.ljust(_NUMBERS.size + TEXT_BYTES, b"\0"), dtype=torch.uint8)

    def packed(self) -> bytes:
        """For a stream: a head, then what of the text has no room in it."""
        text = self.text.encode()[:TEXT_BYTES]
        return _HEAD.pack(self.size_bytes, self.tag, len(text), text) + text[_BEGINNING_BYTES:]

    @staticmethod
    def room() -> torch.Tensor:
        return torch.empty(_NUMBERS.size + TEXT_BYTES, dtype=torch.uint8)

    @staticmethod
    def decoded(content: torch.Tensor) -> "Announcement":
        raw = content.numpy().tobytes()
        text = raw[_NUMBERS.size :].rstrip(b"\0").decode(errors="replace")
        size_bytes, tag = _NUMBERS.unpack_from(raw)
        return Announcement(size_bytes, tag, text)


def parse_head(content: bytes) -> tuple[int, int, bytes, int]:
    """Of a packed announcement: bytes of the message, its tag, the text's beginning, bytes of it that follow."""
    size_bytes, tag, text_bytes, beginning = _HEAD.unpack(content)
    if size_bytes < 0 or not 0 <= text_bytes <= TEXT_BYTES:
        raise ValueError("no announcement begins like that")
    return size_bytes, tag, beginning[:text_bytes], max(0, text_bytes - _BEGINNING_BYTES)
