"""A bucket whose gradients are gathered from all ranks, decoded, and added in rank order: the same bits everywhere."""

import hashlib
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.compress import Codec, PayloadKind, Residuals, payload_bytes, unpack
from gradtide.compress.compiled import Array
from gradtide.compress.payload import write, write_nothing
from gradtide.sync.compressed.leaders import HostLeaders
from gradtide.sync.compressed.state import BucketPart, Round

__all__ = ["GatheredBucket"]


class GatheredBucket:
    """`exchange` runs in the background, while backward goes on."""

    def __init__(
        self,
        group: Group | HostLeaders,
        codec: Codec,
        flat: Tensor,
        parts: Sequence[BucketPart],
        residuals: Residuals,
    ) -> None:
        self._group, self._codec, self._flat, self._parts, self._residuals = group, codec, flat, parts, residuals
        sizes = [payload_bytes(codec, part.form) for part in parts]
        ends = np.cumsum(sizes).tolist()
        self._places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._own = group.shared_tensor(ends[-1], torch.uint8)
        self._all = torch.empty((group.size, ends[-1]), dtype=torch.uint8)

    @property
    def sent_bytes(self) -> int:
        return self._own.nbytes

    def factors(self) -> dict[str, Array]:
        """Nothing is kept but what is left out."""
        return {}

    def load_factors(self, known: Mapping[str, Array]) -> None:
        """There are none."""

    def exchange(self, now: Round) -> None:
        """This rank's gradients, which lie in the bucket, become those of all."""
        values, payload = self._working(), self._own.numpy()
        apart = {}
        for part, place in zip(self._parts, self._places, strict=True):
            if not self._encode(part, values[part.place], payload[place], now):
                apart[part.index] = values[part.place].copy()
        self._group.all_gather(self._own, self._all)
        rows, coming = self._all.numpy(), list[tuple[int, BucketPart]]()
        for rank in range(self._group.size):
            for part, place in zip(self._parts, self._places, strict=True):
                target = values[part.place]
                if unpack(self._codec, rows[rank, place], part.form, target, add=rank > 0) is PayloadKind.APART:
                    coming.append((rank, part))
        for rank, part in coming:  # a value that is not finite: it must reach everybody
            here = rank == self._group.rank
            whole = torch.from_numpy(apart[part.index] if here else np.empty_like(values[part.place]))
            self._group.broadcast(whole, rank)
            values[part.place] += whole.numpy()
        if values.dtype != _dtype_of(self._flat):
            self._flat.copy_(torch.from_numpy(values))

    def _working(self) -> Array:
        """The bucket as codecs see it: bfloat16 and float16 are float32 to them."""
        values: Array = (self._flat if _dtype_of(self._flat) is not None else self._flat.float()).numpy()
        return values

    def _encode(self, part: BucketPart, gradient: Array, out: Array, now: Round) -> bool:
        """False for what goes apart."""
        codec, rate, draw = self._codec, now.rates[part.index], _draw(now.number, self._group.rank, part.index)
        if part.index not in now.given:  # whatever was left out of it before stays
            write_nothing(codec, part.form, out)
            return True
        if not codec.feedback:
            return write(codec, gradient, part.form, out, draw)
        if rate == 0.0:  # a step that changes nothing: what was left out is not spent on it
            return write(codec, gradient.copy(), part.form, out, draw)
        corrected = self._residuals.correct(part.name, gradient, rate)
        if write(codec, corrected, part.form, out, draw):
            return True
        self._residuals.leave(part.name)
        return False


def _dtype_of(flat: Tensor) -> object:
    """As numpy has it; None for what codecs don't know."""
    return {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}.get(flat.dtype)


def _draw(number: int, rank: int, index: int) -> int:
    """Other lots for each synchronisation, rank and parameter, and the same in each run."""
    digest = hashlib.blake2b(struct.pack("<QQQ", number, rank, index), digest_size=8).digest()
    return int.from_bytes(digest, "little")
