"""What a rank wants, as a text for people and a number that ranks compare at each meeting."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

__all__ = ["TEXTS", "Call", "Signature", "sign"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Equal texts have equal numbers; different ones don't, but for one chance in 2**64."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked for, and how long it may take. look: called now and then by who waits for it; it may raise."""

    signature: Signature
    timeout_s: float
    look: Callable[[], None] | None = None


def _signature(text: str) -> Signature:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return Signature(int.from_bytes(digest, "little", signed=True), text)


TEXTS = _signature("an explanation of a mismatch")


@lru_cache(maxsize=4096)
def sign(call: str, dtype: torch.dtype | None = None, shape: tuple[int, ...] | None = None) -> Signature:
    """Of a call such as "all_reduce(sum)" on a tensor of this dtype and shape."""
    if dtype is None:
        return _signature(call)
    return _signature(f"{call} of {str(dtype).removeprefix('torch.')}{list(shape or ())}")
