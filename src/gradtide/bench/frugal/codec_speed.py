"""What a codec should send, by its formula, and how fast it encodes and decodes on one core."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gradtide.compress import Compress, Form, as_compress, payload_bytes
from gradtide.compress.payload import unpack, write
from gradtide.errors import ConfigError

__all__ = ["CodecSpeed", "codecs_of", "formula_bytes", "measure_codecs"]


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """Bytes of float32 a second, by one core; what is checked on the way is in it."""

    codec: str
    encode_per_s: float
    decode_per_s: float


def codecs_of(text: str) -> list[str]:
    """fp16,topk:0.01 -> each as it is written; what makes no sense is said now."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        settings = as_compress(name)
        if settings is None or settings.codec == "auto":
            raise ConfigError(f"--codecs {text}: name codecs, as fp16,int8")
    if not names:
        raise ConfigError("--codecs names none; give some, as fp16,int8")
    return names


def formula_bytes(compress: str | None, shapes: Iterable[Sequence[int]]) -> float:
    """Of float32 gradients of these shapes, as the table in docs/frugal.md has it; None: whole."""
    return sum(_of_one(compress, tuple(shape)) for shape in shapes)


def _of_one(compress: str | None, shape: tuple[int, ...]) -> float:
    count = int(np.prod(shape))
    settings = as_compress(compress)
    if settings is None:
        return 4.0 * count
    match settings.codec:
        case "fp16" | "bf16":
            return 2.0 * count
        case "int8":
            return 1.0 * count
        case "onebit":
            return count / 8
        case "topk":
            return 8.0 * max(1.0, _option(settings, "ratio") * count)
        case "powersgd":
            rows = shape[0] if len(shape) > 1 else 1
            thin = min(int(_option(settings, "rank")), rows, count // rows) * (rows + count // rows)
            return 4.0 * min(thin, count)
    raise ConfigError(f"what {compress} should send is not known; add its formula to bench/frugal/codec_speed.py")


def _option(settings: Compress, name: str) -> float:
    return float(getattr(settings.make(), name))


def measure_codecs(names: Sequence[str], count: int, repetitions: int) -> list[CodecSpeed]:
    """Codecs take turns, so that noise hits all; medians."""
    rows = next(rows for rows in (4096, 64, 1) if count % rows == 0)
    form = Form(count, np.dtype(np.float32), rows)
    gradient = np.random.default_rng(0).standard_normal(count, dtype=np.float32)
    work, out = np.empty_like(gradient), np.empty_like(gradient)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(repetitions + 1):
        for name in names:
            pair_s = _once(name, form, (gradient, work, out))
            if number:  # the first time kernels are loaded
                took[name].append(pair_s)
    size = gradient.nbytes
    return [
        CodecSpeed(name, size / median(s for s, _ in pairs), size / median(s for _, s in pairs))
        for name, pairs in took.items()
    ]


def _once(name: str, form: Form, memory: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[float, float]:
    settings = as_compress(name)
    assert settings is not None
    codec, (gradient, work, out) = settings.make(), memory
    np.copyto(work, gradient)  # codecs leave there what they leave out
    payload = np.zeros(payload_bytes(codec, form), np.uint8)
    began_s = time.perf_counter()
    write(codec, work, form, payload, 1)
    encoded_s = time.perf_counter()
    unpack(codec, payload, form, out)
    return encoded_s - began_s, time.perf_counter() - encoded_s
