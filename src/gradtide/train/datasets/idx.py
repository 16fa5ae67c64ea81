"""The IDX format: two zero bytes, a type, the number of dimensions, each dimension's length, then the values."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradtide.errors import DataError

__all__ = ["read_idx"]

UNSIGNED_BYTE = 8


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Reads an IDX file of bytes, gzipped or not, that must hold exactly this shape."""
    content = _read(path, limit=4 + 4 * len(shape) + math.prod(shape))
    header = 4 + 4 * len(shape)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise DataError(f"{path} is not an IDX file of bytes: it starts with {content[:4].hex(' ') or 'nothing'}")
    if content[3] != len(shape):
        raise DataError(f"{path} holds {content[3]} dimensions, expected {len(shape)} {shape}; is it the right file?")
    found = struct.unpack(f">{len(shape)}I", content[4:header]) if len(content) >= header else ()
    if found != shape:
        raise DataError(f"{path} says it holds {found or 'nothing'}, expected {shape}; is it the right file?")
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{path} is truncated or too long: {len(content)} bytes, "
            f"expected {header + math.prod(shape)}; fetch it again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())


def _read(path: Path, limit: int) -> bytes:
    """At most one byte more than expected is unpacked, so a rogue file can't fill the memory."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read ({error}); it may be truncated or corrupt: fetch it again") from error
