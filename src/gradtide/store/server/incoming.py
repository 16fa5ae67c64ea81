"""How the values of a request are received on a server: which memory each part of it goes to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradtide.errors import DataError, FrameError
from gradtide.store.rules.codecs import BlockCodec, block_codec
from gradtide.store.rules.tensors import DTYPES, bytes_of
from gradtide.store.server.peers import Arriving
from gradtide.store.shard.rounds import Block
from gradtide.store.shard.shard_set import LAYOUTS_KEPT, ShardSet
from gradtide.store.wire.messages import Init, Part, Piece, Pull, Push
from gradtide.store.wire.placement import BLOCK_BYTES
from gradtide.transport.connection import Connection

if TYPE_CHECKING:
    from gradtide.store.server.fast.short import Short

__all__ = ["Client", "Incoming", "PartShape", "PartShapes", "check_part", "land", "restore_values", "use_in_place"]


@dataclass(slots=True, eq=False)
class PartShape:
    """How the values of one part of a layout are received."""

    part: Part
    size_bytes: int
    dtypes: tuple[torch.dtype, ...]  # by piece
    counts: tuple[int, ...]
    uniform: bool  # all of one dtype and small enough for one piece of memory
    passing: bool = False  # outside of rounds: applied when they are handed over, so their memory is free again
    codecs: tuple[BlockCodec | None, ...] = ()  # by piece, where some are encoded
    short: "Short | None" = None  # how the fast path does it


@dataclass(slots=True)
class Incoming:
    """A request whose values are arriving."""

    message: Push | Init
    shapes: tuple[PartShape, ...]
    index: int = 0  # of the part that is arriving
    values: Sequence[Tensor] = ()  # of this part, as far as there is memory for them

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to come after this part."""
        return self.index == len(self.shapes) - 1


@dataclass(slots=True, eq=False)
class Client:
    connection: Connection
    request: Incoming | None = None
    arriving: Arriving | None = None  # from another server
    handed_over: int = 0  # body bytes that credit was not given back for
    noted: dict[tuple[int, int], int] = field(default_factory=dict)  # (sequence, shard) -> bytes that wait here
    noted_bytes: int = 0
    scratch: Tensor | None = None  # where passing values are received, again and again: new pages cost more than adding
    landings: dict[PartShape, tuple[Sequence[Tensor], memoryview]] = field(default_factory=dict)  # views of scratch


def use_in_place(client: Client, body: memoryview) -> bool:
    """Whether the values of the part that is arriving can be read where they lie: they are applied at once."""
    request = client.request
    shape = request.shapes[request.index] if request is not None else None
    if request is None or shape is None or not (shape.uniform and shape.passing) or len(body) != shape.size_bytes:
        return False
    flat = torch.frombuffer(body, dtype=shape.dtypes[0])
    if flat.data_ptr() % flat.element_size():
        return False
    request.values = flat.split(shape.counts) if len(shape.counts) > 1 else (flat,)
    return True


def land(client: Client, shape: PartShape) -> tuple[Sequence[Tensor], memoryview]:
    """Memory for values that pass: the same for every part of this client, as one after the other arrives."""
    if client.scratch is None or client.scratch.nbytes < shape.size_bytes:
        client.scratch = torch.empty(shape.size_bytes, dtype=torch.uint8)
        client.landings.clear()
    elif len(client.landings) >= LAYOUTS_KEPT:
        client.landings.clear()
    flat = client.scratch[: shape.size_bytes].view(shape.dtypes[0])
    landing = client.landings[shape] = (flat.split(shape.counts), bytes_of(flat))
    return landing


class PartShapes:
    """By layout, as long as all its keys are known."""

    def __init__(self, shard_set: ShardSet[Tensor]) -> None:
        self._shard_set = shard_set
        self._kept: dict[bytes, tuple[PartShape, ...]] = {}

    def known(self, layout: bytes) -> tuple[PartShape, ...] | None:
        return self._kept.get(layout)

    def of(self, message: Push | Pull | Init, parts: tuple[Part, ...]) -> tuple[PartShape, ...]:
        """How the values of a request are received."""
        if isinstance(message, Init):
            return _find_shapes(self._shard_set, message, parts)[0]
        return self._kept.get(message.layout) or self._make(message, parts)

    def _make(self, message: Push | Pull, parts: tuple[Part, ...]) -> tuple[PartShape, ...]:
        shapes, all_known = _find_shapes(self._shard_set, message, parts)
        if all_known:
            if len(self._kept) >= LAYOUTS_KEPT:
                self._kept.clear()
            self._kept[message.layout] = shapes
        return shapes

    def clear(self) -> None:
        """Shards may have gone, and come back with other keys."""
        self._kept.clear()


def _find_shapes(
    shard_set: ShardSet[Tensor], message: Push | Pull | Init, parts: tuple[Part, ...]
) -> tuple[tuple[PartShape, ...], bool]:
    """How the values of a request are received; and whether all of its keys are known, so that this can be kept."""
    made, all_known, passing = [], True, False
    for part in parts:
        codecs: tuple[BlockCodec | None, ...] = ()
        if isinstance(message, Init):
            dtypes = [DTYPES.get(message.spec.dtype)] * len(part.pieces)
        else:
            shard = shard_set.shards.get(part.shard)
            blocks = shard.blocks if shard is not None else {}
            known = [blocks.get((piece.key, piece.block)) for piece in part.pieces]
            all_known = all_known and None not in known
            passing = all(block is not None and block.spec.delay is None for block in known)
            passing = passing and not shard_set.is_replicated  # else the log keeps them
            # An unknown key will be refused when it has arrived; until then its bytes are just bytes.
            dtypes = [DTYPES[block.spec.dtype] if block else None for block in known]
            if any(piece.encoded for piece in part.pieces):
                codecs = tuple(map(_find_codec, part.pieces, known))
                dtypes = [dtype if codec is None else torch.uint8 for dtype, codec in zip(dtypes, codecs, strict=True)]
        shape = check_part(part, dtypes, isinstance(message, Init), passing)
        shape.codecs = codecs
        made.append(shape)
    return tuple(made), all_known


def _find_codec(piece: Piece, block: Block[Tensor] | None) -> BlockCodec | None:
    """Of a piece that is encoded: it is a whole block, and as long as its codec makes it."""
    if block is None or not piece.encoded:
        return None
    codec = block_codec(block.spec, block.elements)
    if codec is None:
        raise FrameError(f"it sent {piece.key!r} encoded, which is not compressed")
    if piece.start or piece.count != block.elements or piece.size_bytes != codec.size_bytes:
        raise FrameError(f"it sent an encoded piece of {piece.key!r} that is no whole block, or not as long as one is")
    return codec


def restore_values(shape: PartShape, values: Sequence[Tensor]) -> Sequence[Tensor]:
    """The values that were sent, where some of them are encoded; raises FrameError where they make no sense."""
    if not any(shape.codecs):
        return values
    try:
        return [
            value if codec is None else codec.read(value) for codec, value in zip(shape.codecs, values, strict=True)
        ]
    except DataError as error:
        raise FrameError(str(error)) from None


def check_part(part: Part, dtypes: Sequence[torch.dtype | None], must_know: bool, passing: bool = False) -> PartShape:
    """Checks a part that came over the wire, and says how its values are received."""
    counts, chosen = [], []
    for piece, dtype in zip(part.pieces, dtypes, strict=True):
        size = piece.size_bytes
        if not 0 <= size <= BLOCK_BYTES or piece.count < 0 or piece.start < 0 or piece.block < 0:
            raise FrameError("it sent a piece that is larger than a block, or negative")
        if dtype is None and must_know:
            raise FrameError("it sent values of a dtype that the store does not have")
        if dtype is not None and not piece.encoded and size != piece.count * dtype.itemsize:
            raise FrameError("it sent a piece whose bytes don't match its dtype")
        chosen.append(dtype or torch.uint8)
        counts.append(piece.count if dtype and not piece.encoded else size)
    total = sum(piece.size_bytes for piece in part.pieces)
    uniform = len(set(chosen)) == 1 and total <= BLOCK_BYTES
    return PartShape(part, total, tuple(chosen), tuple(counts), uniform, passing)
