"""What workers have of a block whose rounds go back compressed, beside its exact value.

Where servers step, what goes back of a round is the difference between the value and what workers have, encoded once
when the round closes; what that leaves out is in the next difference. Where they only average, it is the average and
what earlier answers left out. The encoded rounds that a worker may still ask for are kept (bounded:k: the last k + 1),
and with them what workers had before. All of it is part of the block: logged, replicated, moved and checkpointed. A
replica does the same, and gets the same bits.

What is not finite can't be encoded: of such a round the values themselves are kept, and workers get them whole.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from gradtide.store.rules.codecs import BlockCodec, answers_whole, block_codec, draw_of
from gradtide.store.wire.messages import KeySpec

__all__ = ["Published", "publishes", "split_beside"]

T = TypeVar("T")
_NAME = "published"
_BEFORE, _RESIDUAL, _AS_IT_IS = f"{_NAME} before", f"{_NAME} residual", f"{_NAME} as it is"
_ROUND, _WHOLE = f"{_NAME} round ", f"{_NAME} whole "


class Published:
    """Of one block. `value` gives its exact value; `fresh` says that the value is that of a round that just ended;
    `goes_whole`, that averages are not to be compressed just now."""

    def __init__(self, spec: KeySpec, codec: BlockCodec, value: Callable[[], Tensor]) -> None:
        assert spec.delay is not None
        self._key, self._delay, self._codec, self._value = spec.key, spec.delay, codec, value
        self._differences = not answers_whole(spec)
        self.fresh = self.goes_whole = False
        self._closed = 0
        self._rounds: dict[int, Tensor] = {}  # encoded, or whole where that could not be
        self._whole: set[int] = set()  # which of them are
        self._tip = value().clone()  # what workers have after the last round
        self._before = self._tip if self._delay == 0 else self._tip.clone()  # and after the oldest they may ask for
        self._residual: Tensor | None = None  # what the averages that were sent have left out

    @property
    def averages(self) -> bool:
        """Whether a round's answer stands for itself."""
        return not self._differences

    def close(self, round_: int) -> None:
        for number in range(max(self._closed + 1, round_ - self._delay), round_ + 1):
            if self._differences:
                self._add_difference(number)
            else:
                self._add_average(number)
        oldest = round_ - self._delay
        for number in [number for number in self._rounds if number <= oldest]:
            if self._delay and number > self._closed - self._delay:
                self._put(self._before, number)
            if number < oldest:
                del self._rounds[number]
                self._whole.discard(number)
        self._closed = max(self._closed, round_)

    def _add_difference(self, round_: int) -> None:
        self._keep(round_, self._codec.encode(self._value() - self._tip, draw_of(self._key, round_)))
        self._put(self._tip, round_)

    def _add_average(self, round_: int) -> None:
        """Of a round that nobody pushed for the answer is the one before."""
        last = max(self._rounds, default=0)
        if not self.fresh and last:
            self._rounds[round_] = self._rounds[last]
            if last in self._whole:
                self._whole.add(round_)
            return
        answer = self._value().clone() if self._residual is None else self._value() + self._residual
        goes = self.fresh and not self.goes_whole
        encoded = self._codec.encode(answer, draw_of(self._key, round_)) if goes else None
        self._keep(round_, encoded)
        if encoded is not None and self._codec.feedback:
            self._residual = answer
        self.fresh = False
        self._put(self._tip, round_)

    def _keep(self, round_: int, encoded: Tensor | None) -> None:
        if encoded is None:
            self._whole.add(round_)
        self._rounds[round_] = self._value().clone() if encoded is None else encoded

    def _put(self, values: Tensor, round_: int) -> None:
        """What a worker does with the answer of a round."""
        if round_ in self._whole:
            values.copy_(self._rounds[round_])
        else:
            self._codec.decode(self._rounds[round_], values, add=self._differences)

    def scale_residual(self, factor: float) -> None:
        """The learning rate by which workers step has changed: old / new."""
        if self._residual is not None:
            self._residual = self._residual * factor

    # --- what workers are given ---

    def has_encoded(self, round_: int) -> bool:
        return round_ in self._rounds and round_ not in self._whole

    def encoded(self, round_: int) -> Tensor:
        return self._rounds[round_]

    def seen(self, round_: int) -> int:
        return max(round_, self._closed - self._delay)

    def whole(self, round_: int) -> Tensor:
        if round_ >= self._closed:
            return self._tip.clone()
        values, oldest = self._before.clone(), self._closed - self._delay
        for number in range(oldest + 1, round_ + 1):
            if number in self._rounds:
                self._put(values, number)
        return values

    # --- on its way to another server ---

    def beside(self) -> dict[str, Tensor]:
        found = {_NAME: self._tip}
        if self._delay:
            found[_BEFORE] = self._before
        if self._residual is not None:
            found[_RESIDUAL] = self._residual
        if self.goes_whole:
            found[_AS_IT_IS] = torch.ones(1, dtype=torch.uint8)
        for number, kept in self._rounds.items():
            found[f"{_WHOLE if number in self._whole else _ROUND}{number}"] = kept
        return found

    def take(self, beside: Mapping[str, Tensor]) -> None:
        """As another server had it."""
        self._tip = beside[_NAME].clone()
        self._before = beside[_BEFORE].clone() if self._delay else self._tip
        self._residual = beside[_RESIDUAL].clone() if _RESIDUAL in beside else None
        self._rounds, self._whole, self.goes_whole = {}, set(), _AS_IT_IS in beside
        for name, kept in beside.items():
            for prefix in (_ROUND, _WHOLE):
                if name.startswith(prefix):
                    number = int(name.removeprefix(prefix))
                    self._rounds[number] = kept.clone()
                    if prefix == _WHOLE:
                        self._whole.add(number)
        self._closed = max(self._rounds, default=0)


def publishes(spec: KeySpec, value: Callable[[], Tensor]) -> Published | None:
    """None where workers get the value itself: without rounds, or without a codec that makes it smaller."""
    codec = block_codec(spec, value().numel()) if spec.delay is not None else None
    return Published(spec, codec, value) if codec is not None else None


def split_beside(beside: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """What a rule keeps beside a value, and what belongs to its published rounds."""
    of_rule = {name: value for name, value in beside.items() if not name.startswith(_NAME)}
    return of_rule, {name: value for name, value in beside.items() if name.startswith(_NAME)}
