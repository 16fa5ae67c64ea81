"""A checkpoint as one plain file of tensors under their own names, and back."""

import contextlib
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.manifest import Manifest, check_header, check_part, check_sizes
from gradtide.checkpoint.places import Place, open_place
from gradtide.checkpoint.shelf import Shelf, Taken
from gradtide.checkpoint.tensor_file import TensorFile, TensorGroup, write_file
from gradtide.errors import ConfigError, DataError, OutputError
from gradtide.store.rules.tensors import dtype_name
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.image import snapshot
from gradtide.store.shard.rounds import Block
from gradtide.store.shard.shard import Shard
from gradtide.store.snapshot.shard_file import entry_of, part_of, read_shards
from gradtide.store.wire.layouts import pieces_of
from gradtide.store.wire.messages import KeySpec, Piece, UpdateRule
from gradtide.store.wire.placement import block_span, shard_of

__all__ = ["collect_values", "make_checkpoint", "read_plain", "write_plain"]

MODEL = "model/"  # before the names of a model's tensors in a checkpoint of a run without servers
BUFFER = "buffer "  # before the names of a model's buffers in a store
_FILE_BYTES = 256 << 20


def collect_values(place: Place, manifest: Manifest) -> dict[str, Tensor]:
    """Every key whole; of a training run, the model's state_dict."""
    found: dict[str, Tensor] = {}
    check_sizes(place, "", manifest.files)
    for entry in manifest.files:
        if not any(part.name.startswith("shard-") for part in entry.parts):
            found |= {name[len(MODEL) :]: t for name, t in _tensors_of(place, entry).items() if name.startswith(MODEL)}
    of_worker = set(found)
    for word, values in read_shards(place, manifest):
        first = 0
        for image in word.blocks:
            spec = image.created.spec
            name = spec.key.removeprefix(BUFFER) if manifest.train is not None else spec.key
            if name not in of_worker:
                whole = found.setdefault(name, torch.empty(prod(spec.shape), dtype=values[first].dtype))
                start, stop = block_span(image.created.block, whole.numel(), whole.element_size())
                whole.view(-1)[start:stop] = values[first]
                found[name] = whole.view(spec.shape)
            first += image.values
    return found


def _tensors_of(place: Place, entry: FileEntry) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    with TensorFile(place, entry.name) as file:
        check_header(file, entry)
        for part in entry.parts:
            tensors, checksum = file.read(part.start, part.end)
            check_part(file, part, checksum)
            found |= tensors
    return found


def write_plain(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As safetensors, or, when the name ends in .pt or .pth, as a state_dict that `torch.load` reads."""
    try:
        if path.suffix in (".pt", ".pth"):
            partial = path.with_name(f"{path.name}.part")
            torch.save({name: tensor.clone() for name, tensor in tensors.items()}, partial)
            os.replace(partial, path)
            return
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.part")
        raise OutputError(f"{path} can't be written: {error}") from None
    if path.suffix != ".safetensors":
        raise ConfigError(f"{path} names no format; let it end in .safetensors, or in .pt for a state_dict of torch")
    write_file(open_place(path.parent), "", path.name, [TensorGroup("all", tensors)], padded=False)


def read_plain(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. One of torch is not read: it may hold code."""
    if path.suffix in (".pt", ".pth", ".bin"):
        raise ConfigError(
            f"{path} is a pickle, which may run code and is not read here; save it with safetensors.torch.save_file"
        )
    with TensorFile(open_place(path.parent), path.name) as file:
        end = max((slot.end for slot in file.slots), default=len(file.header))
        found, _ = file.read(len(file.header), end)
    tensors = {name: tensor for name, tensor in found.items() if name != "all/padding"}
    if not tensors:
        raise DataError(f"{path} has no tensors; there is nothing to import")
    return tensors


def make_checkpoint(path: str, tensors: Mapping[str, Tensor], rule: UpdateRule, delay: int | None) -> Taken:
    """A checkpoint of a store that holds these tensors and has never been pushed to."""
    arithmetic, shards = TorchArithmetic(), dict[int, Shard[Tensor]]()
    for key, value in tensors.items():
        spec = KeySpec(key, tuple(value.shape), dtype_name(value.dtype) or "", rule, delay)
        for piece in pieces_of(spec):
            number = shard_of(key, piece.block)
            shard = shards.setdefault(number, Shard(number, arithmetic))
            shard.blocks[key, piece.block] = _block(arithmetic, spec, piece, value)
    shelf = Shelf(path)
    shelf.place.make_folder("")
    step = shelf.next_step()
    folder = shelf.new_folder(step)
    files, entries = _write_shards(shelf.place, folder, list(shards.values()))
    return shelf.commit(folder, step, tuple(files), shards=tuple(entries), servers=1)


def _block(arithmetic: TorchArithmetic, spec: KeySpec, piece: Piece, value: Tensor) -> Block[Tensor]:
    start, stop = block_span(piece.block, value.numel(), value.element_size())
    own = value.reshape(-1)[start:stop].clone()
    state = arithmetic.create(spec, own)
    return Block(spec, piece.count, piece.size_bytes, arithmetic.digest(own), state)


def _write_shards(place: Place, folder: str, shards: list[Shard[Tensor]]) -> tuple[list[FileEntry], list[ShardEntry]]:
    files: list[FileEntry] = []
    entries: list[ShardEntry] = []
    while shards:
        name, batch, size = f"imported-{len(files) + 1:05d}.safetensors", list[TensorGroup](), 0
        while shards and size < _FILE_BYTES:
            word, values = snapshot(shards.pop(), 0, "")
            batch.append(part_of(word, values))
            entries.append(entry_of(word, name))
            size += sum(value.nbytes for value in values)
        files.append(write_file(place, folder, name, batch))
    return files, sorted(entries, key=lambda entry: entry.shard)
