"""fp16 and bf16: half the bits, rounded to the nearest. What is too large becomes the largest there is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array

__all__ = ["BrainFloat", "HalfFloat"]

_PIECE = 1 << 15  # elements: what is clamped is still in the cache when it is rounded


class _Half:
    kind: ClassVar[torch.dtype]
    infinite: ClassVar[int]
    feedback: ClassVar[bool] = False

    def kept(self, form: Form) -> int:
        return form.count

    def body_bytes(self, form: Form) -> int:
        return 2 * form.count

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        most, source, target = torch.finfo(self.kind).max, torch.from_numpy(values), self._halves(body)
        for piece, half in zip(source.split(_PIECE), target.split(_PIECE), strict=True):
            half.copy_(piece.clamp(-most, most))
        return True

    def check(self, body: Array, form: Form) -> None:
        bits = body.view(np.uint16)
        for begin in range(0, form.count, _PIECE):
            if int((bits[begin : begin + _PIECE] & 0x7FFF).max()) >= self.infinite:
                refuse("a value is not finite")

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        target, halves = torch.from_numpy(out), self._halves(body)
        if not add:
            target.copy_(halves)
            return
        for piece, half in zip(target.split(_PIECE), halves.split(_PIECE), strict=True):
            piece.add_(half.to(piece.dtype))  # in one operation, torch converts slowly

    def _halves(self, body: Array) -> Any:
        return torch.from_numpy(body).view(self.kind)


@codec
@dataclass(frozen=True, slots=True)
class HalfFloat(_Half):
    """Eleven digits, from 6e-8 to 65,504."""

    name: ClassVar[str] = "fp16"
    number: ClassVar[int] = 1
    kind: ClassVar[torch.dtype] = torch.float16
    infinite: ClassVar[int] = 0x7C00


@codec
@dataclass(frozen=True, slots=True)
class BrainFloat(_Half):
    """Eight digits, and the range of float32."""

    name: ClassVar[str] = "bf16"
    number: ClassVar[int] = 2
    kind: ClassVar[torch.dtype] = torch.bfloat16
    infinite: ClassVar[int] = 0x7F80
