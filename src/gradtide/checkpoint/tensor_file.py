"""The safetensors format: eight bytes of length, a JSON header, the tensors' bytes end to end.

Written here as a stream, straight from the tensors' memory, and read piece by piece, so that a server reads only the
shards it holds. Any reader of safetensors opens these files. A **part** is a run of tensors with a checksum of its own.
"""

import hashlib
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import torch
from torch import Tensor

from gradtide.checkpoint.entries import FileEntry, PartEntry
from gradtide.checkpoint.places import Place
from gradtide.errors import DataError

__all__ = ["DTYPES", "TensorFile", "TensorGroup", "TensorSlot", "write_file"]

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 4096  # where the tensors begin: pages of the disk
_MOST_HEADER_BYTES = 100 << 20  # as in safetensors itself


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that are read together. They are laid out by size of element, so each is aligned."""

    name: str
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where a tensor lies in its file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def write_file(place: Place, folder: str, name: str, parts: Sequence[TensorGroup], *, padded: bool = True) -> FileEntry:
    """Writes the parts one after the other; what is known of them when it is done. Without padding, which is a tensor
    of its own, only the first part begins aligned: for files of one part that others read."""
    laid_out = [(part, _in_order(part, padded=padded)) for part in parts]
    header = _header(laid_out)
    entries: list[PartEntry] = []

    def content() -> Iterator[memoryview | bytes]:
        yield header
        position = len(header)
        for part, tensors in laid_out:
            start, checksum = position, 0
            for _, tensor in tensors:
                view = _bytes_of(tensor)
                checksum = zlib.crc32(view, checksum)
                position += len(view)
                yield view
            entries.append(PartEntry(part.name, start, position, checksum))

    place.write(f"{folder}/{name}" if folder else name, content())
    size = entries[-1].end if entries else len(header)
    return FileEntry(name, size, hashlib.sha256(header).hexdigest(), tuple(entries))


def _in_order(part: TensorGroup, *, padded: bool) -> list[tuple[str, Tensor]]:
    """Nothing first, then large elements first; bytes at the end make the next part begin aligned."""
    named = [(name, tensor.detach().contiguous()) for name, tensor in part.tensors.items()]
    ordered = sorted(named, key=lambda pair: (pair[1].nbytes > 0, -pair[1].element_size()))
    total = sum(tensor.nbytes for _, tensor in ordered)
    rest = -total % 8 if total else 8
    if rest and padded:
        ordered.append((f"{part.name}/padding", torch.zeros(rest, dtype=torch.uint8)))
    return ordered


def _header(parts: Sequence[tuple[TensorGroup, list[tuple[str, Tensor]]]]) -> bytes:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for _, tensors in parts:
        for name, tensor in tensors:
            end = position + tensor.nbytes
            offsets = {"data_offsets": [position, end]}
            described[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)} | offsets
            position = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


class TensorFile:
    """A file that is open for reading; raises DataError, with its name, for whatever is wrong with it."""

    def __init__(self, place: Place, name: str) -> None:
        self.name = f"{place.address}/{name}"
        self._file = place.read(name)
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> bytes:
        length = int.from_bytes(self._exactly(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise DataError(f"{self.name} is no safetensors file: it begins with a header of {length} bytes")
        text = bytes(self._exactly(length))
        try:
            found = json.loads(text)
            found.pop("__metadata__", None)
            slots = [_slot(key, value, 8 + length) for key, value in found.items()]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{self.name} is no safetensors file: its header makes no sense") from None
        self.slots = sorted(slots, key=lambda slot: slot.start)
        self._starts = [slot.start for slot in self.slots]
        return length.to_bytes(8, "little") + text

    def read(self, start: int, end: int) -> tuple[dict[str, Tensor], int]:
        """The tensors that lie in [start, end), as views of one piece of memory, and its checksum."""
        memory = torch.empty(end - start, dtype=torch.uint8)
        self._file.seek(start)
        view = _bytes_of(memory)
        self._fill(view)
        found = {}
        for slot in self.slots[bisect_left(self._starts, start) : bisect_left(self._starts, end)]:
            if slot.end <= end:
                raw = memory[slot.start - start : slot.end - start]
                aligned = raw if (slot.start - start) % slot.dtype.itemsize == 0 else raw.clone()
                found[slot.name] = aligned.view(slot.dtype).view(slot.shape)
        return found, zlib.crc32(view)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytearray:
        memory = bytearray(count)
        self._fill(memoryview(memory))
        return memory

    def _fill(self, view: memoryview) -> None:
        while view:
            try:
                got = self._file.readinto(view)  # type: ignore[attr-defined]
            except OSError as error:
                raise DataError(f"{self.name} can't be read: {error.strerror}") from None
            if not got:
                raise DataError(f"{self.name} is cut short: {len(view)} bytes are missing")
            view = view[got:]


def _slot(name: str, found: dict[str, list[int]], base: int) -> TensorSlot:
    dtype, shape = DTYPES[str(found["dtype"])], tuple(int(size) for size in found["shape"])
    start, end = (base + int(offset) for offset in found["data_offsets"])
    if min(shape, default=0) < 0 or start < base or end - start != prod(shape) * dtype.itemsize:
        raise ValueError(name)
    return TensorSlot(name, dtype, shape, start, end)


def _bytes_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's own memory."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]
