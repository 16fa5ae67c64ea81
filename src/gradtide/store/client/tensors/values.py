"""From what a user passes (one key, a list, a dict; tensors, rows, out=) to pieces of memory, and back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from gradtide.errors import ConfigError, StoreError
from gradtide.store.client.tensors.packed import Packed, pack
from gradtide.store.rules.tensors import DTYPES, bytes_of, dtype_name
from gradtide.store.wire.layouts import ITEM_BYTES, BlockLayout, Gathered
from gradtide.store.wire.messages import KeySpec
from gradtide.store.wire.placement import block_elements

__all__ = ["Keys", "PieceMap", "Values", "destinations", "keys_of", "make_piece_map", "pieces", "shape_like", "sources"]

Keys = str | Sequence[str] | Mapping[str, Tensor]
Values = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PieceMap:
    """Where the pieces of a layout lie in the tensors of its keys. Worked out once for each set of keys."""

    layout: BlockLayout
    specs: tuple[KeySpec, ...]  # by key
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the tensors: with rows, of those rows
    places: tuple[tuple[int, int, int], ...]  # by piece: which key, from which byte of its tensor, to which
    of_shard: dict[int, tuple[int, int]]  # the pieces of a shard: from, to
    whole: bool  # one key, one piece: the tensor's memory is the piece
    packed: Packed | None  # many keys, one piece each
    compressed: bool  # some of its keys are


def make_piece_map(layout: BlockLayout, specs: Sequence[KeySpec], rows: slice | None) -> PieceMap:
    position = {spec.key: i for i, spec in enumerate(specs)}
    shapes = tuple(_rows_of(spec, rows) for spec in specs)
    places = []
    for piece in layout.pieces:
        i = position[piece.key]
        item = ITEM_BYTES[specs[i].dtype]
        skipped = rows.indices(specs[i].shape[0])[0] * prod(specs[i].shape[1:]) if rows is not None else 0
        start = (piece.block * block_elements(item) + piece.start - skipped) * item
        places.append((i, start, start + piece.size_bytes))
    of_shard, first = {}, 0
    for part in layout.parts:
        of_shard[part.shard] = (first, first + len(part.pieces))
        first += len(part.pieces)
    dtypes = tuple(DTYPES[spec.dtype] for spec in specs)
    packed = pack(layout, places, shapes, set(dtypes))
    compressed = any(spec.compress for spec in specs)
    whole = len(places) == 1
    return PieceMap(layout, tuple(specs), dtypes, shapes, tuple(places), of_shard, whole, packed, compressed)


def _rows_of(spec: KeySpec, rows: slice | None) -> tuple[int, ...]:
    if rows is None:
        return spec.shape
    if not spec.shape:
        raise ConfigError(f"{spec.key!r} is a single number and has no rows; leave rows= out")
    if rows.step not in (None, 1):
        raise ConfigError(f"rows of {spec.key!r} must follow each other; leave the step of {rows} out")
    first, last, _ = rows.indices(spec.shape[0])
    return (max(0, last - first), *spec.shape[1:])


def keys_of(keys: Keys) -> tuple[str, ...]:
    """The names, in order, without repetition."""
    if not hasattr(keys, "__iter__"):
        raise ConfigError(f"a key is a name, not {type(keys).__name__}; give a string, a list or a dict of them")
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"a key is a name, not {type(name).__name__}; give a string, a list or a dict of them")
    if len(set(names)) != len(names):
        raise ConfigError("a key is named twice in one request; name each once")
    if not names:
        raise ConfigError("no key is named; name at least one")
    return names


def given(keys: Keys, values: Values | None, what: str) -> Sequence[Tensor]:
    """The tensors, in the order of the keys."""
    if values is None and isinstance(keys, Mapping):
        return list(keys.values())
    if isinstance(values, Tensor):
        return (values,)
    if isinstance(values, Mapping):
        missing = [name for name in keys_of(keys) if name not in values]
        if missing:
            raise ConfigError(f"{what} has no tensor for {missing[0]!r}; give one for each key")
        return [values[name] for name in keys_of(keys)]
    if values is None:
        raise ConfigError(f"{what} needs a tensor for each key: give them beside the keys, or a dict")
    return values


def sources(piece_map: PieceMap, keys: Keys, values: Values | None, what: str) -> Sequence[memoryview]:
    """The memory to send, by piece. A tensor that is elsewhere, not contiguous or one of many small ones is copied."""
    tensors = given(keys, values, what)
    _check_count(piece_map, tensors, what)
    if piece_map.packed is not None and piece_map.packed.fits(tensors):
        return piece_map.packed.gather(tensors)
    views = []
    for i, tensor in enumerate(tensors):
        _check(piece_map, i, tensor, what)
        if tensor.requires_grad or not tensor.is_contiguous() or tensor.is_cuda:
            tensor = tensor.detach().to("cpu").contiguous()
        views.append(bytes_of(tensor))
    return pieces(piece_map, views)


def pieces(piece_map: PieceMap, views: list[memoryview]) -> list[memoryview]:
    if piece_map.whole:
        return views
    return [views[i][start:stop] for i, start, stop in piece_map.places]


@dataclass(slots=True)  # not frozen: that triples the time to make one, and one is made for each pull
class Destination:
    """Where values are received, and how they become what the user gets."""

    views: Sequence[memoryview]  # by piece
    tensors: Sequence[Tensor]
    finish: Callable[[], Sequence[Tensor]] | None = None  # `tensors`, where they need something done to them first

    def targets(self, first: int, last: int) -> list[memoryview]:
        """The memory of these pieces, the first one last."""
        views = self.views
        return [views.run(first, last)] if isinstance(views, Gathered) else [*views[first:last]][::-1]

    def result(self) -> Sequence[Tensor]:
        """When everything has arrived."""
        return self.tensors if self.finish is None else self.finish()


def destinations(piece_map: PieceMap, keys: Keys, out: Values | None) -> Destination:
    """Memory for the answer: the user's own where it can be, else new."""
    if out is None and piece_map.packed is not None:
        views, flat = piece_map.packed.land()
        return Destination(views, (), partial(piece_map.packed.scatter, flat))
    if out is None:
        tensors: Sequence[Tensor] = [
            torch.empty(shape, dtype=dtype) for shape, dtype in zip(piece_map.shapes, piece_map.dtypes, strict=True)
        ]
        return Destination(pieces(piece_map, [bytes_of(tensor) for tensor in tensors]), tensors)
    tensors = given(keys, out, "out")
    _check_count(piece_map, tensors, "out")
    if piece_map.packed is not None and piece_map.packed.fits(tensors):
        return _packed_into(piece_map.packed, tensors)
    landing, late = [], []
    for i, tensor in enumerate(tensors):
        _check(piece_map, i, tensor, "out")
        here = tensor.detach()
        if not here.is_contiguous() or here.is_cuda:
            late.append((here, torch.empty(piece_map.shapes[i], dtype=piece_map.dtypes[i])))
            here = late[-1][1]
        landing.append(bytes_of(here))

    def finish() -> Sequence[Tensor]:
        for target, landed in late:
            target.copy_(landed)
        return tensors

    return Destination(pieces(piece_map, landing), tensors, finish if late else None)


def _packed_into(packed: Packed, tensors: Sequence[Tensor]) -> Destination:
    views, flat = packed.land()

    def finish() -> Sequence[Tensor]:
        packed.scatter_into(flat, tensors)
        return tensors

    return Destination(views, tensors, finish)


def shape_like(keys: Keys, tensors: Sequence[Tensor]) -> Tensor | list[Tensor] | dict[str, Tensor]:
    """One tensor for one key, a list for a list, a dict for a dict."""
    if isinstance(keys, str):
        return tensors[0]
    if isinstance(keys, Mapping):
        return dict(zip(keys, tensors, strict=True))
    return list(tensors)


def _check_count(piece_map: PieceMap, tensors: Sequence[Tensor], what: str) -> None:
    if len(tensors) != len(piece_map.specs):
        raise ConfigError(f"{what} has {len(tensors)} tensors for {len(piece_map.specs)} keys; give one for each")


def _check(piece_map: PieceMap, i: int, tensor: Tensor, what: str) -> None:
    if tensor.shape != piece_map.shapes[i] or tensor.dtype is not piece_map.dtypes[i]:
        _complain(piece_map, i, tensor, what)


def _complain(piece_map: PieceMap, i: int, tensor: Tensor, what: str) -> None:
    spec = piece_map.specs[i]
    if not isinstance(tensor, Tensor):
        raise ConfigError(f"{what} of {spec.key!r} needs a tensor, not {type(tensor).__name__}")
    here = f"{dtype_name(tensor.dtype) or tensor.dtype} {tuple(tensor.shape)}"
    raise StoreError(
        f"{what} of {spec.key!r} got {here}, but the key is {spec.dtype} {piece_map.shapes[i]}; "
        "pass a tensor of that shape and dtype"
    )
