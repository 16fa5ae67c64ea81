"""The lines of a manifest: files, the parts of files, and the shards of a store. Plain data, without torch."""

import msgspec

__all__ = ["FileEntry", "PartEntry", "ShardEntry"]


class PartEntry(msgspec.Struct, frozen=True, array_like=True):
    """A run of tensors in a file: bytes [start, end) and their checksum."""

    name: str
    start: int
    end: int
    crc32: int  # half of the processor time of a sha256, and it is there to find damage, not malice


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a checkpoint: what comes before its first part is the header."""

    name: str
    size_bytes: int
    header_sha256: str
    parts: tuple[PartEntry, ...]


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard of a store: which part of which file it is, and its version and round when it was copied."""

    shard: int
    file: str
    epoch: int
    sequence: int
    round: int
