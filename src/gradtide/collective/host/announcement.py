"""What goes before a message: how long it is, its tag, and what it says of itself."""

import struct
from dataclasses import dataclass

import torch

__all__ = ["Announcement"]

_NUMBERS = struct.Struct("<qq")
_TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message is told apart by its tag; one that does not fit who receives it is a mismatch of the two texts."""

    size_bytes: int
    tag: int
    text: str

    def encoded(self) -> torch.Tensor:
        content = bytearray(_NUMBERS.pack(self.size_bytes, self.tag))
        content += self.text.encode()[:_TEXT_BYTES]
        return torch.frombuffer(content.ljust(_NUMBERS.size + _TEXT_BYTES, b"\0"), dtype=torch.uint8)

    @staticmethod
    def room() -> torch.Tensor:
        return torch.empty(_NUMBERS.size + _TEXT_BYTES, dtype=torch.uint8)

    @staticmethod
    def decoded(content: torch.Tensor) -> "Announcement":
        raw = content.numpy().tobytes()
        text = raw[_NUMBERS.size :].rstrip(b"\0").decode(errors="replace")
        size_bytes, tag = _NUMBERS.unpack_from(raw)
        return Announcement(size_bytes, tag, text)
