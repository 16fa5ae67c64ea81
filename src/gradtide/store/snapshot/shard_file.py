"""Shards as parts of a checkpoint's files, and back: the values under their keys' names, all else as MessagePack."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from gradtide.checkpoint.entries import FileEntry, PartEntry, ShardEntry
from gradtide.checkpoint.manifest import Manifest, check_header, check_part, check_sizes
from gradtide.checkpoint.places import Place
from gradtide.checkpoint.tensor_file import TensorFile, TensorGroup
from gradtide.errors import DataError
from gradtide.store.wire.messages import BlockImage, Snapshot
from gradtide.store.wire.placement import SHARDS

__all__ = ["entry_of", "part_of", "read_shards"]

_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Snapshot)


def part_of(word: Snapshot, values: Sequence[Tensor]) -> TensorGroup:
    """A shard: each block as `key[block]`, what its rule keeps beside it as `key[block].name`."""
    text = torch.frombuffer(bytearray(_encoder.encode(word)), dtype=torch.uint8)
    names = [name for image in word.blocks for name in _names(image)]
    return TensorGroup(_part_name(word.shard), {**dict(zip(names, values, strict=True)), _part_name(word.shard): text})


def entry_of(word: Snapshot, file: str) -> ShardEntry:
    """Its line in the manifest."""
    rounds = [image.closed for image in word.blocks if image.created.spec.delay is not None]
    return ShardEntry(word.shard, file, word.version.epoch, word.version.sequence, min(rounds, default=0))


def read_shards(
    place: Place, manifest: Manifest, wanted: Collection[int] = range(SHARDS)
) -> Iterator[tuple[Snapshot, tuple[Tensor, ...]]]:
    """The shards of a checkpoint that are wanted; raises DataError, with the file's name, when something is wrong."""
    chosen: dict[str, list[str]] = {}
    for entry in manifest.shards:
        if entry.shard in wanted:
            chosen.setdefault(entry.file, []).append(_part_name(entry.shard))
    files = {entry.name: entry for entry in manifest.files}
    missing = set(chosen) - set(files)
    if missing:
        raise DataError(f"{place.address} is damaged: its manifest names no file {sorted(missing)[0]}")
    check_sizes(place, "", tuple(files[name] for name in chosen))
    for name, parts in chosen.items():
        yield from _read_file(place, files[name], parts)


def _read_file(place: Place, entry: FileEntry, wanted: Iterable[str]) -> Iterator[tuple[Snapshot, tuple[Tensor, ...]]]:
    parts: dict[str, PartEntry] = {part.name: part for part in entry.parts}
    with TensorFile(place, entry.name) as file:
        check_header(file, entry)
        for name in wanted:
            if name not in parts:
                raise DataError(f"{file.name} has no {name}, which the manifest says it has")
            tensors, checksum = file.read(parts[name].start, parts[name].end)
            check_part(file, parts[name], checksum)
            yield _decode(file.name, name, tensors)


def _decode(file: str, part: str, tensors: Mapping[str, Tensor]) -> tuple[Snapshot, tuple[Tensor, ...]]:
    try:
        word = _decoder.decode(bytes(tensors[part].numpy()))
        return word, tuple(tensors[name] for image in word.blocks for name in _names(image))
    except (KeyError, msgspec.MsgspecError):
        raise DataError(f"{part} of {file} makes no sense to this gradtide") from None


def _names(image: BlockImage) -> list[str]:
    first = f"{image.created.spec.key}[{image.created.block}]"
    return [first, *(f"{first}.{name}" for name in image.names)]


def _part_name(shard: int) -> str:
    return f"shard-{shard}"
