"""Arithmetic that shows every mistake: integers instead of tensors.

`add` keeps exact sums without bound, so a push of 256**i is a digit of its own: the value says which pushes are in
it, and how often. `fold` is neither commutative nor forgiving: another order of contributions, or of rounds, gives
another number. `last` keeps the last push, for those who must see their order kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradtide.errors import ConfigError
from gradtide.store.rules.arithmetic import Arguments, Contribution
from gradtide.store.wire.messages import Argument, KeySpec, Slot

__all__ = ["DIGIT_BITS", "Exact", "ExactArithmetic", "Number", "digits", "fold", "fold_round"]

DIGIT_BITS = 8
_PRIME = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A block that stands for `count` elements."""

    number: int
    count: int


def fold(contributions: Sequence[tuple[float, int]]) -> int:
    """Weighted contributions as one number that depends on their order."""
    folded = 0
    for weight, number in contributions:
        folded = (folded * 1_000_003 + int(weight) * number + 1) % _PRIME
    return folded


def fold_round(value: int, combined: int, rate: int) -> int:
    """The value after a round; depends on the order of rounds and on the rate in force."""
    return (value * 31 + rate * combined) % _PRIME


def digits(number: int, count: int) -> list[int]:
    """How often each of the first `count` pushes is in a sum."""
    return [(number >> (DIGIT_BITS * i)) & ((1 << DIGIT_BITS) - 1) for i in range(count)]


class Exact:
    """The value of one block."""

    def __init__(self, spec: KeySpec, value: Number) -> None:
        self.rule = spec.update.name
        self.rate = 1
        self.current = value

    published = None  # nothing is compressed here

    def value(self) -> Number:
        return self.current

    def combine(self, contributions: Sequence[Contribution[Number]]) -> Number:
        if self.rule == "fold":
            number = fold([(1.0 if c.weight is None else c.weight, c.value.number) for c in contributions])
        else:
            number = sum(c.value.number for c in contributions)
        return Number(number, self.current.count)

    def apply(self, combined: Number) -> None:
        if self.rule == "fold":
            number = fold_round(self.current.number, combined.number, self.rate)
        elif self.rule == "last":
            number = combined.number
        else:
            number = self.current.number + combined.number
        self.current = Number(number, self.current.count)

    def check(self, changes: Mapping[str, Argument]) -> None:
        if set(changes) != {"rate"}:
            raise ConfigError(f"{self.rule} has no arguments {sorted(changes)}; it has rate")

    def configure(self, changes: Mapping[str, Argument]) -> None:
        rate = changes["rate"]
        assert isinstance(rate, int | float)
        self.rate = int(rate)

    def arguments(self) -> Arguments:
        return {"rate": self.rate}

    def beside(self) -> dict[str, Number]:
        return {}


class ExactArithmetic:
    """Makes exact blocks."""

    def create(self, spec: KeySpec, value: Number) -> Exact:
        if spec.update.name not in ("add", "fold", "last"):
            raise ConfigError(f"the update rule {spec.update.name!r} is unknown; the simulator has add, fold and last")
        return Exact(spec, value)

    def digest(self, value: Number) -> bytes:
        return repr(value).encode()

    def has_nan(self, value: Number) -> bool:
        return False

    def count(self, value: Number) -> int:
        return value.count

    def restore(self, spec: KeySpec, value: Number, arguments: Arguments, beside: Mapping[str, Number]) -> Exact:
        state = Exact(spec, value)
        rate = arguments["rate"]
        assert isinstance(rate, int)
        state.rate = rate
        return state

    def slot(self, value: Number) -> Slot:
        return Slot("int64", value.count)

    def copy(self, value: Number) -> Number:
        return value

    def part(self, value: Number, start: int, count: int) -> Number:
        return Number(value.number, count)
