"""A bucket whose gradients travel as thin matrices, which can be added up (PowerSGD).

Two all-reduces, one after the other: of `P = M Q`, which all make orthonormal alike, and of `Q = Mᵀ P`. Each rank keeps
what its own matrix lacks, `M - P (Mᵀ P)ᵀ`: what all of them keep is what the sum lacks. What is no matrix, or would not
be smaller, goes whole with the first. Where a value is not finite, the sum is not either, and all ranks see it: that
matrix goes whole, by itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.compress import Residuals
from gradtide.compress.compiled import Array
from gradtide.compress.payload import is_finite
from gradtide.compress.powersgd import SET, SUBTRACT, PowerSGD, expand, orthonormalise, refill, thin
from gradtide.sync.compressed.state import BucketPart, Round

__all__ = ["FactoredBucket"]


class _Matrix:
    """One gradient, and its two thin matrices in the bucket's memory."""

    def __init__(self, part: BucketPart, left: Array, right: Array) -> None:
        self.part, self.left, self.right = part, left, right
        self.begin = np.zeros_like(right)  # where the power iteration goes on from
        self.next = self.begin
        self.whole: Array = self.begin  # the gradient, with what was left out before
        self.own: Array = self.begin  # our part of the right one


class FactoredBucket:
    """`exchange` runs in the background, while backward goes on."""

    def __init__(
        self, group: Group, codec: PowerSGD, flat: Tensor, parts: Sequence[BucketPart], residuals: Residuals
    ) -> None:
        self._group, self._flat, self._residuals, self._number = group, flat, residuals, -1
        factored = [part for part in parts if codec.kept(part.form)]
        self._plain = [part for part in parts if not codec.kept(part.form)]
        shapes = [(codec.kept(p.form), p.form.rows, p.form.columns) for p in factored]
        lefts, rights = [rank * rows for rank, rows, _ in shapes], [rank * columns for rank, _, columns in shapes]
        plain = sum(part.form.count for part in self._plain)
        kind = torch.float64 if flat.dtype == torch.float64 else torch.float32
        self._first = group.shared_tensor(sum(lefts) + plain, kind)
        self._second = group.shared_tensor(max(1, sum(rights)), kind)
        firsts, seconds = self._first.split([*lefts, plain]), self._second[: sum(rights)].split([*rights, 0])
        self._matrices = [
            _Matrix(part, left.numpy().reshape(rank, -1), right.numpy().reshape(rank, -1))
            for part, (rank, _, _), left, right in zip(factored, shapes, firsts, seconds, strict=False)
        ]
        self._whole = self._first[sum(lefts) :].numpy()

    @property
    def sent_bytes(self) -> int:
        return self._first.nbytes + self._second.nbytes

    def factors(self) -> dict[str, Array]:
        """What the next synchronisation goes on from, by parameter: the same on all ranks."""
        return {matrix.part.name: matrix.next for matrix in self._matrices}

    def load_factors(self, known: Mapping[str, Array]) -> None:
        for matrix in self._matrices:
            if matrix.part.name in known and known[matrix.part.name].shape == matrix.next.shape:
                matrix.next = known[matrix.part.name]

    def exchange(self, now: Round) -> None:
        """This rank's gradients, which lie in the bucket, become those of all."""
        values = (self._flat if self._flat.dtype in (torch.float32, torch.float64) else self._flat.float()).numpy()
        self._turn(now.number)
        for matrix in self._matrices:
            self._project(matrix, values[matrix.part.place], now)
        at = 0
        for part in self._plain:
            self._whole[at : at + part.form.count] = values[part.place]
            at += part.form.count
        self._group.all_reduce(self._first)
        for matrix in self._matrices:
            with np.errstate(over="ignore", invalid="ignore"):
                orthonormalise(matrix.left)
                matrix.right[:] = thin(matrix.whole, matrix.left, transposed=False)
            matrix.own = matrix.right.copy()
        if self._matrices:
            self._group.all_reduce(self._second)
        for matrix in self._matrices:
            self._restore(matrix, values[matrix.part.place], now)
        at = 0
        for part in self._plain:
            values[part.place] = self._whole[at : at + part.form.count]
            at += part.form.count
        if values.dtype == np.float32 and self._flat.dtype != torch.float32:
            self._flat.copy_(torch.from_numpy(values))

    def _turn(self, number: int) -> None:
        """A new synchronisation goes on where the last one ended; the same one again, where it began."""
        if number == self._number:
            return
        self._number = number
        for matrix in self._matrices:
            matrix.begin = matrix.next.copy()
            refill(matrix.begin, draw=(number << 20) + matrix.part.index)

    def _project(self, matrix: _Matrix, gradient: Array, now: Round) -> None:
        part = matrix.part
        rate = now.rates[part.index]
        if part.index not in now.given:
            whole = np.zeros_like(gradient)
        elif rate == 0.0:  # a step that changes nothing: what was left out is not spent on it
            whole = gradient.copy()
        else:
            whole = self._residuals.correct(part.name, gradient, rate)
        matrix.whole = whole.reshape(part.form.rows, -1)
        matrix.left[:] = thin(matrix.whole, matrix.begin, transposed=True)

    def _restore(self, matrix: _Matrix, gradient: Array, now: Round) -> None:
        part, counts = matrix.part, matrix.part.index in now.given and now.rates[matrix.part.index] != 0.0
        if not (is_finite(matrix.left.ravel()) and is_finite(matrix.right.ravel())):  # so it is on all ranks
            if counts:
                self._residuals.leave(part.name)
            self._group.all_reduce(torch.from_numpy(gradient))
            return
        if counts:
            expand(matrix.left, matrix.own, matrix.whole, SUBTRACT)
        expand(matrix.left, matrix.right, gradient.reshape(part.form.rows, -1), SET)
        matrix.next = matrix.right
