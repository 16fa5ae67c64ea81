"""What compressed scenarios train: small keys of whole numbers. Weights are powers of two: sums are exact."""

from random import Random

import numpy as np
import torch
from torch import Tensor

from gradtide.store.rules.tensors import DTYPES
from gradtide.store.wire.messages import KeySpec, UpdateRule
from gradtide.store.wire.placement import key_hash

__all__ = ["BLOCK_BYTES", "compressed_async_specs", "compressed_round_specs", "gradient_of", "start_of", "weight_of"]

BLOCK_BYTES = 256  # instead of 4 MiB: keys of two blocks are small
_COUNT = 40
_MORE = (  # beside topk and onebit, one of them
    ("mean", "topk:0.2", "float64"),
    ("mean", "onebit", "float64"),
    ("mean", "int8", "float32"),
    ("add", "int8", "float32"),
    ("add", "scaled_fp16", "float32"),
    ("mean", "bf16", "float64"),
)
_WEIGHTS = (0.5, 1.0, 2.0)
_ZEROS = 8  # one gradient in so many has nothing but zeros


def compressed_round_specs(delay: int, seed: int) -> tuple[KeySpec, ...]:
    """Keys in rounds: both ways."""
    rule, codec, dtype = Random(seed ^ 0xC0DE).choice(_MORE)
    return (
        KeySpec("topk", (_COUNT,), "float64", UpdateRule("add"), delay, compress="topk:0.1"),
        KeySpec("onebit", (_COUNT,), "float64", UpdateRule("add"), delay, compress="onebit"),
        KeySpec("more", (2 * _COUNT,), dtype, UpdateRule(rule), delay, compress=codec),
    )


def compressed_async_specs() -> tuple[KeySpec, KeySpec]:
    """Keys whose pushes are updates of their own: compressed on their way there."""
    return (
        KeySpec("sum", (_COUNT,), "float64", UpdateRule("add"), compress="topk:0.1"),
        KeySpec("signs", (_COUNT - 3,), "float64", UpdateRule("add"), compress="onebit"),
    )


def start_of(spec: KeySpec) -> Tensor:
    """What a key is initialised with."""
    return _whole_numbers((key_hash(spec.key),), spec)


def gradient_of(spec: KeySpec, digit: int) -> Tensor:
    """Of one push of a run."""
    if digit % _ZEROS == _ZEROS - 1:
        return torch.zeros(spec.shape, dtype=DTYPES[spec.dtype])
    return _whole_numbers((key_hash(spec.key), digit), spec)


def _whole_numbers(seed: tuple[int, ...], spec: KeySpec) -> Tensor:
    drawn = np.random.default_rng(seed).integers(-40, 41, spec.shape)
    return torch.from_numpy(drawn).to(DTYPES[spec.dtype])


def weight_of(number: int) -> float:
    return _WEIGHTS[number % len(_WEIGHTS)]
