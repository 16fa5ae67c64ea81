"""Which pieces of which keys a request moves, by shard, and how they split over the servers of a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

from gradtide.store.wire.messages import KeySpec, Part, Piece, Table, layout_name
from gradtide.store.wire.placement import block_count, block_elements, shard_of

__all__ = ["ITEM_BYTES", "BlockLayout", "EncodedBytes", "Gathered", "ServerShare", "build_layout", "pieces_of"]

V = TypeVar("V")
EncodedBytes = Callable[[KeySpec, int], int | None]  # of so many elements; None: they go as they are

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class Gathered(Sequence[memoryview]):
    """The values of all pieces, in their order, in one piece of memory. `bounds`: where each begins, and the end."""

    def __init__(self, memory: memoryview, bounds: Sequence[int]) -> None:
        self._memory, self._bounds = memory, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            first, last, _ = index.indices(len(self))
            return Gathered(self._memory, self._bounds[first : last + 1])
        return self._memory[self._bounds[index] : self._bounds[index + 1]]

    def run(self, first: int, last: int) -> memoryview:
        """The memory of the pieces from `first` up to but without `last`."""
        return self._memory[self._bounds[first] : self._bounds[last]]


@dataclass(frozen=True, slots=True)
class ServerShare:
    """The part of a layout that one server of a table gets."""

    server: int  # index into the table's servers
    parts: tuple[Part, ...]
    name: bytes  # of these parts as a layout
    pieces: tuple[int, ...]  # which pieces of the whole layout, in the order of `parts`
    runs: tuple[tuple[int, int], ...]  # the same as ranges
    size_bytes: int

    def select(self, values: Any) -> Any:
        """Of the values of all pieces, those of this share, in as few pieces of memory as there can be."""
        if isinstance(values, Gathered):
            return [values.run(first, last) for first, last in self.runs]
        return [values[i] for i in self.pieces]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The pieces of a set of keys, grouped by shard. Values are always given in the order of `pieces`."""

    keys: tuple[str, ...]
    parts: tuple[Part, ...]
    pieces: tuple[Piece, ...]
    _shares: dict[int, tuple[ServerShare, ...]] = field(default_factory=dict, repr=False, compare=False)

    def shares(self, table: Table) -> tuple[ServerShare, ...]:
        """Who gets what; worked out once an epoch."""
        known = self._shares.get(table.epoch)
        if known is None:
            self._shares.clear()
            known = self._shares[table.epoch] = tuple(_split(self.parts, table.owners))
        return known


def pieces_of(spec: KeySpec, rows: slice | None = None, encoded_bytes: EncodedBytes | None = None) -> list[Piece]:
    """A key cut into blocks; with `rows`, only the blocks that these rows (of the first dimension) touch. With
    `encoded_bytes` they are encoded, where that makes them smaller."""
    item_bytes = ITEM_BYTES[spec.dtype]
    per_block = block_elements(item_bytes)
    start, stop = 0, prod(spec.shape)
    if rows is not None:
        first, last, _ = rows.indices(spec.shape[0])
        row = prod(spec.shape[1:])
        start, stop = first * row, max(first, last) * row
    pieces: list[Piece] = []
    for block in range(start // per_block, max(block_count(stop, item_bytes), start // per_block + 1)):
        low, high = max(start, block * per_block), min(stop, (block + 1) * per_block)
        small = encoded_bytes(spec, high - low) if encoded_bytes is not None else None
        size_bytes = (high - low) * item_bytes if small is None else small
        pieces.append(Piece(spec.key, block, low - block * per_block, high - low, size_bytes, small is not None))
    return pieces


def build_layout(keys: Iterable[tuple[KeySpec, slice | None, EncodedBytes | None]]) -> BlockLayout:
    """The layout of a set of keys."""
    chosen = list(keys)
    by_shard: dict[int, list[Piece]] = {}
    for spec, rows, encoded_bytes in chosen:
        for piece in pieces_of(spec, rows, encoded_bytes):
            by_shard.setdefault(shard_of(piece.key, piece.block), []).append(piece)
    parts = tuple(Part(shard, tuple(by_shard[shard])) for shard in sorted(by_shard))
    return BlockLayout(
        tuple(spec.key for spec, _, _ in chosen), parts, tuple(piece for part in parts for piece in part.pieces)
    )


def _split(parts: tuple[Part, ...], owners: Sequence[int]) -> Iterable[ServerShare]:
    chosen: dict[int, list[Part]] = {}
    indices: dict[int, list[int]] = {}
    first = 0
    for part in parts:
        server = owners[part.shard]
        chosen.setdefault(server, []).append(part)
        indices.setdefault(server, []).extend(range(first, first + len(part.pieces)))
        first += len(part.pieces)
    for server in sorted(chosen):
        own = tuple(chosen[server])
        size_bytes = sum(piece.size_bytes for part in own for piece in part.pieces)
        pieces = tuple(indices[server])
        yield ServerShare(server, own, layout_name(own), pieces, tuple(_runs(pieces)), size_bytes)


def _runs(indices: Sequence[int]) -> Iterable[tuple[int, int]]:
    first = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1:
            yield indices[first], indices[i - 1] + 1
            first = i
