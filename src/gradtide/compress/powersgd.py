"""powersgd: a matrix as the product of two thin ones, found by one step of power iteration from where the last ended.

What is left out is sent later. Between workers the thin matrices are added up, which is why it needs collectives:
`P = M Q` of all, made orthonormal, then `Q = Mᵀ P` of all, and `P Qᵀ` is everybody's. Thin matrices lie here as rows.
In the form of a codec one party does all of it by itself, from a random beginning.

What is no matrix, or is not smaller as two, goes as it is. Zeros give zeros: a direction without length is left out,
and drawn anew for the next step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from gradtide.compress.codec import Form, codec, refuse
from gradtide.compress.compiled import Array, CodecKernel, Element
from gradtide.errors import ConfigError

__all__ = ["PowerSGD", "expand", "orthonormalise", "refill", "thin"]

SET, ADD, SUBTRACT = 0, 1, 2
_LOST = 1e-12  # of a direction's length: what is left of it is rounding


def _orthonormalise(element: Element) -> Any:
    def orthonormalise(rows: Any) -> Any:
        """Gram and Schmidt, each row twice, which is enough; in float64."""
        count, length = rows.shape
        exact = rows.astype(np.float64)
        for i in range(count):
            largest = 0.0
            for x in range(length):
                largest = max(largest, abs(exact[i, x]))
            if largest > 0.0:  # neither too small nor too large to be squared
                for x in range(length):
                    exact[i, x] /= largest
            before = 0.0
            for x in range(length):
                before += exact[i, x] * exact[i, x]
            for _ in range(2):
                for j in range(i):
                    dot = 0.0
                    for x in range(length):
                        dot += exact[i, x] * exact[j, x]
                    for x in range(length):
                        exact[i, x] -= dot * exact[j, x]
            after = 0.0
            for x in range(length):
                after += exact[i, x] * exact[i, x]
            inverse = 1.0 / np.sqrt(after) if after > before * _LOST * _LOST else 0.0
            for x in range(length):
                exact[i, x] *= inverse
                rows[i, x] = exact[i, x]

    return orthonormalise


def _expand(element: Element) -> Any:
    F = element.number

    def expand(left: Any, right: Any, out: Any, how: Any) -> Any:
        columns = right.shape[1]
        product = np.empty(columns, F)
        for i in range(left.shape[1]):
            product[:] = 0
            for r in range(left.shape[0]):
                factor, row = left[r, i], right[r]
                for j in range(columns):
                    product[j] += F(factor * row[j])
            target = out[i]
            if how == SET:
                for j in range(columns):
                    target[j] = product[j]
            elif how == ADD:
                for j in range(columns):
                    target[j] += product[j]
            else:
                for j in range(columns):
                    target[j] -= product[j]

    return expand


_ORTHONORMALISE, _EXPAND = CodecKernel(_orthonormalise), CodecKernel(_expand)


def orthonormalise(rows: Array) -> None:
    """In place, with the same bits on all machines. A row that depends on those before becomes zeros."""
    _ORTHONORMALISE(rows.dtype, rows)


def expand(left: Array, right: Array, out: Array, how: int) -> None:
    """The product of two thin matrices becomes, is added to, or taken from a whole one."""
    _EXPAND(left.dtype, left, right, out, how)


def thin(matrix: Array, rows: Array, *, transposed: bool) -> Array:
    """The matrix, or its transpose, times what lies in rows: as rows again. The order of its sums is BLAS's."""
    whole = torch.from_numpy(matrix)
    product: Array = torch.mm(torch.from_numpy(rows), whole.T if transposed else whole).numpy()
    return product


def refill(rows: Array, draw: int) -> None:
    """Directions to begin with: what is there, made orthonormal, and random ones where there is nothing."""
    orthonormalise(rows)
    empty = ~rows.any(axis=1)
    if empty.any():
        rows[empty] = np.random.Generator(np.random.PCG64(draw)).standard_normal((int(empty.sum()), rows.shape[1]))
        orthonormalise(rows)


@codec
@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Of rank 4, unless said."""

    rank: int = 4
    name: ClassVar[str] = "powersgd"
    tag: ClassVar[str] = "powersgd"
    number: ClassVar[int] = 6
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"compress: powersgd of rank {self.rank} makes no sense; give 1 or more")

    def kept(self, form: Form) -> int:
        """The rank; 0 for what goes as it is."""
        rank = min(self.rank, form.rows, form.columns)
        return rank if rank * (form.rows + form.columns) < form.count else 0

    def body_bytes(self, form: Form) -> int:
        rank = self.kept(form)
        return form.dtype.itemsize * (rank * (form.rows + form.columns) if rank else form.count)

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        if not self.kept(form):
            body.view(form.dtype)[:] = values
            values[:] = 0
            return True
        if np.abs(values).max(initial=0.0) > np.finfo(form.dtype).max / (4 * form.count):
            return False  # sums of products would be infinite
        left, right = self._parts(body, form)
        matrix = values.reshape(form.rows, -1)
        right[:] = 0
        refill(right, draw)
        left[:] = thin(matrix, right, transposed=True)
        orthonormalise(left)
        right[:] = thin(matrix, left, transposed=False)
        expand(left, right, matrix, SUBTRACT)
        return True

    def check(self, body: Array, form: Form) -> None:
        if not np.isfinite(body.view(form.dtype)).all():
            refuse("a value is not finite")

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        if self.kept(form):
            expand(*self._parts(body, form), out.reshape(form.rows, -1), ADD if add else SET)
        elif add:
            out += body.view(form.dtype)
        else:
            out[:] = body.view(form.dtype)

    def _parts(self, body: Array, form: Form) -> tuple[Array, Array]:
        both, rank = body.view(form.dtype), self.kept(form)
        at = rank * form.rows
        return both[:at].reshape(rank, -1), both[at:].reshape(rank, -1)
