"""How the blocks of a compressed key are encoded: by the codec that its spec names, if that makes them smaller."""

import threading
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from gradtide.compress import AUTO, FORMATS, Compress, as_compress, codec_of_tag, text_of_tag
from gradtide.compress.codec import Codec, Form
from gradtide.compress.payload import is_finite
from gradtide.errors import ConfigError
from gradtide.store.rules.tensors import DTYPES
from gradtide.store.wire.layouts import ITEM_BYTES
from gradtide.store.wire.messages import KeySpec

__all__ = [
    "BlockCodec",
    "answers_whole",
    "block_codec",
    "check_compress",
    "draw_of",
    "encoded_bytes",
    "has_older",
    "is_ready",
    "tag_of",
]

_WHOLE = ("mean", "trimmed_mean")  # rules whose value is new in every round
_DTYPES = ("float32", "float64")
_MOST_DELAY = 64  # so many encoded rounds are kept
_making, _made = threading.Lock(), dict[tuple[str, str], threading.Thread]()


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """Of blocks of so many elements of one dtype."""

    codec: Codec
    layout: Form
    size_bytes: int

    @property
    def is_ready(self) -> bool:
        return is_ready(self.codec.name, str(self.layout.dtype))

    @property
    def feedback(self) -> bool:
        """Whether what is left out is to be sent later."""
        return self.codec.feedback

    def encode(self, values: Tensor, draw: int) -> Tensor | None:
        """What stands for these values; with feedback, what it leaves out stays in them. None, and they stay as they
        are, where one is not finite, or beyond the codec."""
        given, body = values.numpy(), np.empty(self.size_bytes, np.uint8)
        done = is_finite(given) and self.codec.encode(given, self.layout, body, draw)
        return torch.from_numpy(body) if done else None

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
    layout = Form(count, np.dtype(dtype))
    size_bytes = codec.body_bytes(layout)
    return BlockCodec(codec, layout, size_bytes) if size_bytes < count * ITEM_BYTES[dtype] else None


@lru_cache(maxsize=64)
def _codec(compress: str) -> Codec:
    return codec_of_tag(compress)


def tag_of(compress: str | Compress | None) -> str:
    """As a key's spec has it."""
    settings = as_compress(compress) if compress != "" else None
    if settings is None:
        return ""
    if settings.codec == AUTO:
        raise ConfigError("compress='auto' is for a model, whose way is known; name a codec for a key")
    if settings.after:
        raise ConfigError(f"{settings!r}: servers compress from the first round on; leave after= out")
    return settings.tag


def has_older(tag: str) -> bool:
    """Whether keys of an older checkpoint may be encoded in another way, which has the same name."""
    return sum(kind.name == text_of_tag(tag).partition(":")[0] for kind in FORMATS.values()) > 1


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
    if spec.delay is not None and spec.delay > _MOST_DELAY:
        raise ConfigError(
            f"{spec.key!r}: bounded:{spec.delay} would keep as many encoded rounds; with compress= it goes up to "
            f"bounded:{_MOST_DELAY}"
        )
    if name == "onebit" and spec.update.name in ("adam", "adamw"):
        raise ConfigError(
            f"{spec.key!r}: onebit with {spec.update.name} does not converge, as its second moments see signs alone; "
            "use sgd, or int8"
        )


def is_ready(compress: str, dtype: str) -> bool:
    """Whether a codec can be used at once. Kernels are compiled, or loaded, when they are first used, which may take
    longer than a server may be silent: so a thread of its own does that, from the first time on that this is asked."""
    name = compress.partition(":")[0], dtype
    if name[0] not in FORMATS or dtype not in _DTYPES:
        return True  # whoever looks at what it wants says what is wrong with it
    with _making:
        if name not in _made:
            _made[name] = threading.Thread(target=_make_ready, args=name, name="gradtide-codec", daemon=True)
            _made[name].start()
        return not _made[name].is_alive()


def _make_ready(compress: str, dtype: str) -> None:
    codec = _block_codec(compress, dtype, 4096)
    if codec is not None:
        values = torch.ones(4096, dtype=DTYPES[dtype])
        body = codec.encode(values, 0)
        assert body is not None
        codec.decode(body, codec.read(body), add=True)


def answers_whole(spec: KeySpec) -> bool:
    """Whether a round's answer stands for itself; else it is what has to be added to the one before."""
    return spec.update.name in _WHOLE


def draw_of(*what: object) -> int:
    """The number that a codec throws its dice by: the same for the same block and round, or sender and request."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def _aligned(body: Tensor) -> Tensor:
    """Kernels read numbers where numbers lie."""
    return body.clone() if body.data_ptr() % 8 else body
