"""Where a client's fast path is entered: the keys that may go it, each with a lane of its own."""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradtide.store.client.fast.lane import Lane
from gradtide.store.client.pending import Pending
from gradtide.store.client.tensors.values import Destination, Keys, PieceMap

if TYPE_CHECKING:
    from gradtide.store.client.catalogue import Catalogue
    from gradtide.store.client.engine import Engine

__all__ = ["Lanes"]

_SMALL_BYTES = 1 << 16  # what the kernel takes in one go
Receiving = Callable[[str, PieceMap, Keys, Destination], Pending[Any]]


class Lanes:
    """By key. They are good as long as the catalogue keeps the plans that they were made from."""

    def __init__(self, engine: "Engine", catalogue: "Catalogue", receiving: Receiving) -> None:
        self._engine, self._catalogue, self._receiving = engine, catalogue, receiving
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._piece_maps = catalogue.piece_maps

    def try_push_pull(self, key: Any, value: Any, out: Any, weight: float | None) -> Tensor | None:
        """The values; None: not this way, and nothing was sent."""
        if type(key) is not str:
            return None
        lane = self._lanes.get(key) if self._piece_maps is self._catalogue.piece_maps else None
        if lane is None and (lane := self._open(key)) is None:
            return None
        found = lane.push_pull(value, out, weight)
        return found if found is None or isinstance(found, Tensor) else found.wait()

    def _open(self, key: str) -> Lane | None:
        """Once the general way has worked out where the key's memory lies."""
        with self._lock:
            piece_maps = self._catalogue.piece_maps
            if self._piece_maps is not piece_maps:
                self._lanes = {}
                self._piece_maps = piece_maps  # last: others look at it without the lock
            piece_map = piece_maps.get((key, None))
            if piece_map is None or not _is_small(piece_map):
                return None
            lane = self._lanes[key] = Lane(
                self._engine, piece_map, partial(self._receiving, "push_pull", piece_map, key)
            )
            return lane


def _is_small(piece_map: PieceMap) -> bool:
    """Whether it is of one small key outside of rounds."""
    return (
        piece_map.whole
        and piece_map.specs[0].delay is None
        and not piece_map.specs[0].compress
        and 0 < piece_map.layout.pieces[0].size_bytes <= _SMALL_BYTES
    )
