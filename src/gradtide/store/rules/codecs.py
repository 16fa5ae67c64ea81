"""How the blocks of a compressed key are encoded: by the codec that its spec names, if that makes them smaller."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from gradtide.compress import Compress
from gradtide.compress.codec import Codec, Layout
from gradtide.errors import ConfigError
from gradtide.store.wire.layouts import ITEM_BYTES
from gradtide.store.wire.messages import KeySpec

__all__ = ["BlockCodec", "answers_whole", "block_codec", "check_compress", "draw_of", "encoded_bytes", "is_finite"]

_WHOLE = ("mean", "trimmed_mean")  # rules whose value is new in every round
_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """Of blocks of so many elements of one dtype."""

    codec: Codec
    layout: Layout
    size_bytes: int

    @property
    def feedback(self) -> bool:
        """Whether what is left out is to be sent later."""
        return self.codec.feedback

    def encode(self, values: Tensor, draw: int) -> Tensor:
        """What stands for these values. With feedback, what it leaves out stays in them; else they are used up."""
        body = np.empty(self.size_bytes, np.uint8)
        self.codec.encode(values.numpy(), self.layout, body, draw)
        return torch.from_numpy(body)

    def decode(self, body: Tensor, out: Tensor, *, add: bool) -> None:
        """Of what was encoded here."""
        self.codec.decode(_aligned(body).numpy(), self.layout, out.numpy(), add)

    def check(self, body: Tensor) -> None:
        """Raises DataError if what came over a wire makes no sense."""
        self.codec.check(_aligned(body).numpy(), self.layout)

    def read(self, body: Tensor) -> Tensor:
        """The values of what came over a wire; raises DataError, before there is memory for them, if it makes no
        sense."""
        body = _aligned(body)
        self.check(body)
        out = torch.empty(self.layout.count, dtype=torch.float32 if self.layout.dtype.itemsize == 4 else torch.float64)
        self.decode(body, out, add=False)
        return out


def block_codec(spec: KeySpec, count: int) -> BlockCodec | None:
    """None: blocks of so many elements go as they are."""
    return _block_codec(spec.compress, spec.dtype, count) if spec.compress else None


def encoded_bytes(spec: KeySpec, count: int) -> int | None:
    codec = block_codec(spec, count)
    return codec.size_bytes if codec is not None else None


@lru_cache(maxsize=4096)
def _block_codec(compress: str, dtype: str, count: int) -> BlockCodec | None:
    codec = _codec(compress)
    layout = Layout(count, np.dtype(dtype))
    size_bytes = codec.body_bytes(layout)
    return BlockCodec(codec, layout, size_bytes) if size_bytes < count * ITEM_BYTES[dtype] else None


@lru_cache(maxsize=64)
def _codec(compress: str) -> Codec:
    return Compress.parse(compress).codec()


def check_compress(spec: KeySpec, *, optimizer: bool) -> None:
    """Raises ConfigError if a key can't be compressed so. `optimizer`: its rule is one of torch's."""
    if not spec.compress:
        return
    name = spec.compress.partition(":")[0]
    if name == "powersgd":
        raise ConfigError(
            f"{spec.key!r}: powersgd can't go over servers, which hold blocks of a tensor and add up one worker after "
            "the other; use topk, onebit or int8, or train without servers"
        )
    _codec(spec.compress)
    if spec.dtype not in _DTYPES:
        raise ConfigError(f"{spec.key!r} is {spec.dtype}; compress= goes with {' and '.join(_DTYPES)}")
    if not optimizer and spec.update.name not in (*_WHOLE, "add"):
        raise ConfigError(
            f"{spec.key!r} is updated by {spec.update.name!r}; compress= goes with optimizers, 'add', 'mean' and "
            "'trimmed_mean'"
        )
    if name == "onebit" and spec.update.name in ("adam", "adamw"):
        raise ConfigError(
            f"{spec.key!r}: onebit with {spec.update.name} does not converge, as its second moments see signs alone; "
            "use sgd, or int8"
        )


def answers_whole(spec: KeySpec) -> bool:
    """Whether a round's answer stands for itself; else it is what has to be added to the one before."""
    return spec.update.name in _WHOLE


def draw_of(*what: object) -> int:
    """The number that a codec throws its dice by: the same for the same block and round, or sender and request."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def _aligned(body: Tensor) -> Tensor:
    """Kernels read numbers where numbers lie."""
    return body.clone() if body.data_ptr() % 8 else body


def is_finite(values: Tensor) -> bool:
    """Are all of them?"""
    if not values.numel():
        return True
    least, most = torch.aminmax(values)
    return isfinite(float(least)) and isfinite(float(most))
