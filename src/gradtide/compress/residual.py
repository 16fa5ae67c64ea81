"""What codecs have left out, by parameter, to be sent later: once, whatever becomes of a step.

A residual changes when it is encoded. What it was before this synchronisation stays until it is over, so that the same
gradient encoded again gives the same bytes; what it was before this step stays until the next one begins, so that a
step can be undone.

What it was when its parameter was last stepped stays too: a gradient may be thrown away, as that of a GAN's critic is,
and then it takes nothing with it and leaves nothing.

With SGD what is left out counts by the learning rate of its step: when that changes, it is scaled by old/new.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from gradtide.compress.compiled import Array

__all__ = ["Residuals"]


class _Residual:
    """Of one parameter."""

    def __init__(self, count: int, dtype: Any) -> None:
        self.now = np.zeros(count, dtype)
        self.base = self.before = self.settled = self.now
        self.rate: float | None = None  # by which what is there now counts
        self.base_rate: float | None = None
        self.before_rate: float | None = None
        self.settled_rate: float | None = None
        self.is_dropped = False  # the gradient it was last sent with was thrown away
        self.step = self.round = -1  # when it changed last
        self._arrays = [self.now]

    def turn(self, step: int, number: int) -> None:
        """Before it changes: what it was stays where it is, and what it becomes gets another place."""
        if self.round == number:
            return
        if self.is_dropped:
            self.now, self.rate, self.is_dropped = self.settled, self.settled_rate, False
        if self.step != step:
            self.base, self.base_rate = self.now, self.rate
        self.before, self.before_rate = self.now, self.rate
        self.step, self.round = step, number
        kept = (self.base, self.before, self.settled)
        free = [array for array in self._arrays if not any(array is one for one in kept)]
        self.now = free[0] if free else np.empty_like(self.base)
        if not free:
            self._arrays.append(self.now)

    def undo(self) -> None:
        self.now, self.rate, self.step = self.base, self.base_rate, -1
        self.settle()

    def settle(self) -> None:
        self.settled, self.settled_rate, self.is_dropped = self.now, self.rate, False


class Residuals:
    """Of all parameters, by name."""

    def __init__(self) -> None:
        self._of: dict[str, _Residual] = {}
        self._step = self._round = 0
        self._over = self._undone = False  # whether the last step is over, or never was

    def begin(self) -> None:
        """Something is to be encoded: of the next step, if the last is over."""
        if self._undone:
            for residual in self._of.values():
                if residual.step == self._step:
                    residual.undo()
        self._step += self._over
        self._over = self._undone = False

    def end(self) -> None:
        """A synchronisation is over: what is encoded from now on is new."""
        self._round += 1

    def stepped(self) -> None:
        self._over = True

    def took(self, name: str) -> None:
        """A parameter was stepped with what was sent of it."""
        if name in self._of:
            self._of[name].settle()

    def dropped(self, name: str) -> None:
        """It was not, and its gradient is gone: what was left out is what it was when it was last stepped."""
        if name in self._of:
            self._of[name].is_dropped = True

    def settle(self, *, undone: bool) -> None:
        """Whether the last step counts. It may be asked again, until the next one begins."""
        self._undone, self._over = undone, True
        self._round += 1

    def correct(self, name: str, gradient: Array, rate: float | None) -> Array:
        """The gradient with what was left out before. What a codec leaves of it there is left out from now on.

        rate: the learning rate, above 0, where it counts.
        """
        residual = self._find(name, gradient)
        residual.turn(self._step, self._round)
        old = residual.before_rate
        factor = 1.0 if rate is None or old is None else old / rate
        residual.rate = rate
        with np.errstate(over="ignore", invalid="ignore"):
            if factor == 1.0:
                np.add(residual.before, gradient, out=residual.now)
            else:
                np.multiply(residual.before, residual.before.dtype.type(factor), out=residual.now)
                np.add(residual.now, gradient, out=residual.now)
        return residual.now

    def leave(self, name: str) -> None:
        """It could not be encoded: what was left out before stays as it was."""
        residual = self._of[name]
        np.copyto(residual.now, residual.before)
        residual.rate = residual.before_rate

    @property
    def hold_something(self) -> bool:
        """Whether anything is left out, or would be if the last step were undone."""
        return any(one.now.any() or one.base.any() for one in self._of.values())

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def value(self, name: str, like: Array) -> Array:
        """What is left out now, of a parameter like this."""
        return self._find(name, like).now

    def rate(self, name: str) -> float | None:
        """By which what is left out now counts."""
        return self._of[name].rate if name in self._of else None

    def add(self, name: str, other: Array, rate: float | None) -> None:
        """What somebody who leaves had left out, which counts by its own rate, is left to this one."""
        residual = self._find(name, other)
        shared = residual.settled is residual.now
        residual.rate = _add_by_rate(residual.now, residual.rate, other, rate)
        if shared:
            residual.settled_rate = residual.rate
        else:
            residual.settled_rate = _add_by_rate(residual.settled, residual.settled_rate, other, rate)

    def state(self, unstepped: Collection[str] = ()) -> dict[str, tuple[Array, float | None]]:
        """What is left out of each, and the rate by which that counts, to be kept and put back. `unstepped`: those with
        a gradient that nobody has stepped with, so that it may as well be thrown away."""
        return {name: self._kept(one, name in unstepped) for name, one in self._of.items()}

    def _kept(self, one: _Residual, unstepped: bool) -> tuple[Array, float | None]:
        if self._undone and one.step == self._step:
            return one.base.copy(), one.base_rate
        if unstepped or one.is_dropped:
            return one.settled.copy(), one.settled_rate
        return one.now.copy(), one.rate

    def put_back(self, name: str, left: Array, rate: float | None) -> None:
        residual = self._of[name] = _Residual(len(left), left.dtype)
        residual.now[:] = left
        residual.rate = residual.settled_rate = rate

    def forget(self, name: str) -> None:
        """It was left out of the gradient of something that is trained no more."""
        self._of.pop(name, None)

    def clear(self) -> None:
        """Somebody else has it now."""
        self._of.clear()

    def _find(self, name: str, like: Array) -> _Residual:
        found = self._of.get(name)
        if found is None or len(found.now) != len(like):
            found = self._of[name] = _Residual(len(like), like.dtype)
        elif found.now.dtype != like.dtype:  # the model was converted
            old, found = found, _Residual(len(like), like.dtype)
            found.now[:] = old.settled if old.is_dropped else old.now
            found.rate = found.settled_rate = old.settled_rate if old.is_dropped else old.rate
            self._of[name] = found
        return found


def _add_by_rate(own: Array, own_rate: float | None, other: Array, rate: float | None) -> float | None:
    """Adds what counts by another rate, so that it moves as far as before. Returns the rate of the sum."""
    if own_rate is None or rate is None or own_rate == rate:
        own += other
        return rate if own_rate is None else own_rate
    own += other * own.dtype.type(rate / own_rate)
    return own_rate
