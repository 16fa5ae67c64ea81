"""What a checkpoint consists of: its files with their sizes and checksums, and what each shard's version was.

The manifest is written last. A folder without one is no checkpoint, whatever else is in it.
"""

import hashlib
from typing import Any

import msgspec

from gradtide.checkpoint.entries import FileEntry, PartEntry, ShardEntry
from gradtide.checkpoint.places import Place
from gradtide.checkpoint.tensor_file import TensorFile
from gradtide.errors import DataError

__all__ = [
    "FORMAT",
    "MANIFEST",
    "Manifest",
    "check_header",
    "check_part",
    "check_sizes",
    "read_manifest",
    "verify",
    "write_manifest",
]

FORMAT = 1
MANIFEST = "manifest.json"
_MOST_BYTES = 1 << 30


class Manifest(msgspec.Struct, frozen=True):
    """A whole checkpoint. `train` is what a training run needs to go on, beside the tensors."""

    step: int
    taken: str  # when, in UTC
    files: tuple[FileEntry, ...]
    shards: tuple[ShardEntry, ...] = ()
    servers: int = 0
    round: int = 0  # of the cut; 0: each shard for itself
    train: dict[str, Any] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class _Envelope(msgspec.Struct):
    gradtide_checkpoint: int  # the format
    sha256: str
    content: msgspec.Raw


def write_manifest(place: Place, folder: str, manifest: Manifest) -> None:
    """The commit."""
    content = msgspec.json.encode(manifest)
    envelope = _Envelope(FORMAT, hashlib.sha256(content).hexdigest(), msgspec.Raw(content))
    place.commit(f"{folder}/{MANIFEST}" if folder else MANIFEST, msgspec.json.encode(envelope) + b"\n")


def read_manifest(place: Place, folder: str = "") -> Manifest:
    """Raises DataError when the folder is no checkpoint, or one that this gradtide can't read."""
    name = f"{folder}/{MANIFEST}" if folder else MANIFEST
    where = f"{place.address}/{folder}" if folder else place.address
    size = place.size(name)
    if size is None:
        raise DataError(f"{where} is no checkpoint: it has no {MANIFEST}; give a folder that has one")
    if size > _MOST_BYTES:
        raise DataError(f"{where}/{MANIFEST} is no manifest of gradtide")
    with place.read(name) as file:
        data = file.read()
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise DataError(f"{where}/{MANIFEST} is no manifest of gradtide, or it is damaged") from None
    if envelope.gradtide_checkpoint != FORMAT:
        raise DataError(
            f"{where}/{MANIFEST} has format {envelope.gradtide_checkpoint}, and this gradtide reads format {FORMAT}; "
            "use the gradtide that wrote it"
        )
    if hashlib.sha256(envelope.content).hexdigest() != envelope.sha256:
        raise DataError(f"{where}/{MANIFEST} is damaged: its checksum is another")
    try:
        return msgspec.json.decode(envelope.content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DataError(f"{where}/{MANIFEST} makes no sense: {error}") from None


def check_sizes(place: Place, folder: str, files: tuple[FileEntry, ...]) -> None:
    """Are all files there, as long as they should be?"""
    for entry in files:
        name = f"{folder}/{entry.name}" if folder else entry.name
        size = place.size(name)
        if size is None:
            raise DataError(f"{place.address}/{name} is missing")
        if size != entry.size_bytes:
            raise DataError(f"{place.address}/{name} has {size} bytes, not {entry.size_bytes}")


def check_header(file: TensorFile, entry: FileEntry) -> None:
    if hashlib.sha256(file.header).hexdigest() != entry.header_sha256:
        raise DataError(f"{file.name} is damaged: the checksum of its header is another")


def check_part(file: TensorFile, part: PartEntry, checksum: int) -> None:
    if checksum != part.crc32:
        raise DataError(f"{file.name} is damaged: the checksum of {part.name} is another")


def verify(place: Place, folder: str = "") -> Manifest:
    """Reads everything and compares every checksum; raises DataError that names the file in which something differs."""
    manifest = read_manifest(place, folder)
    check_sizes(place, folder, manifest.files)
    for entry in manifest.files:
        with TensorFile(place, f"{folder}/{entry.name}" if folder else entry.name) as file:
            check_header(file, entry)
            for part in entry.parts:
                check_part(file, part, file.read(part.start, part.end)[1])
    return manifest
