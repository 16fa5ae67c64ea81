"""What a user is told about a key, and how consistency is written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.errors import ConfigError
from gradtide.store.messages import KeyInfo, UpdateRule, Version

__all__ = ["Info", "merge", "parse_consistency", "show_consistency"]


@dataclass(frozen=True, slots=True)
class Info:
    """A key, over all the servers that hold blocks of it."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    update: UpdateRule
    consistency: str
    version: Version  # the latest of its shards
    round: int  # the latest that is closed everywhere; 0 outside of rounds
    servers: tuple[str, ...]
    size_bytes: int


def merge(found: Sequence[tuple[str, KeyInfo]]) -> Info:
    """From what each server says to what the user is told."""
    spec = found[0][1].spec
    return Info(
        key=spec.key,
        shape=spec.shape,
        dtype=spec.dtype,
        update=spec.update,
        consistency=show_consistency(spec.delay),
        version=max(info.version for _, info in found),
        round=min(info.round for _, info in found),
        servers=tuple(sorted(server for server, _ in found)),
        size_bytes=sum(info.size_bytes for _, info in found),
    )


def parse_consistency(text: str) -> int | None:
    """None for async, else by how many rounds a step may be ahead: 0 for bsp."""
    if text in ("async", "bsp"):
        return None if text == "async" else 0
    match = re.fullmatch(r"bounded\((\d{1,6})\)", text)
    if match is None:
        raise ConfigError(f"unknown consistency {text!r}; choose async, bsp or bounded(k), as in bounded(4)")
    return int(match[1])


def show_consistency(delay: int | None) -> str:
    if delay is None:
        return "async"
    return f"bounded({delay})" if delay else "bsp"
