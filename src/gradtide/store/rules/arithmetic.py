"""What a shard needs to be able to do with values, and nothing more: the numbers are somebody else's.

The server uses torch.optim (updates.py); the simulator uses small integers that show every wrong order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gradtide.store.wire.messages import Argument, KeySpec, Slot

__all__ = ["Arguments", "Arithmetic", "BlockState", "Contribution", "PublishedRounds"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Arguments = dict[str, Argument]


@dataclass(slots=True)  # not frozen: that triples the time to make one, and one is made for each push
class Contribution(Generic[V]):
    """What one worker adds to a round."""

    weight: float | None  # None: the one of the rule's semiring
    value: V


class PublishedRounds(Protocol[V_co]):
    """What workers have of a block whose rounds go back encoded: less than its value."""

    def close(self, round_: int) -> None:
        """Every round up to this one is closed: those that are new are encoded, once and for all."""

    def has_encoded(self, round_: int) -> bool:
        """Can a worker be given this round encoded?"""

    def encoded(self, round_: int) -> V_co:
        """The bytes of a round; they never change."""

    def seen(self, round_: int) -> int:
        """The round whose values `whole` gives: this one, or the oldest that is still known."""

    def whole(self, round_: int) -> V_co:
        """The values that a worker has after this round, in memory of their own."""


class BlockState(Protocol[V]):
    """The value of one block and whatever its update rule keeps beside it."""

    @property
    def published(self) -> PublishedRounds[V] | None:
        """None: workers get the value itself."""

    def value(self) -> V:
        """The current value; the shell must send or copy it before the shard handles the next event."""

    def combine(self, contributions: Sequence[Contribution[V]]) -> V:
        """The contributions of a round, in the order given, as one; this is what replicas are sent."""

    def apply(self, combined: V) -> None:
        """One update with what `combine` gave."""

    def check(self, changes: Mapping[str, Argument]) -> None:
        """Raises ConfigError when the rule has no such arguments, or not with these values."""

    def configure(self, changes: Mapping[str, Argument]) -> None:
        """Change the rule's arguments; they have passed `check`."""

    def arguments(self) -> Arguments:
        """The rule's arguments as they are now."""

    def beside(self) -> dict[str, V]:
        """What the rule keeps beside the value, by name."""


class Arithmetic(Protocol[V]):
    """Makes block states."""

    def create(self, spec: KeySpec, value: V) -> BlockState[V]:
        """A block of a key; raises ConfigError when the rule and the key don't fit."""

    def digest(self, value: V) -> bytes:
        """The same for equal values only."""

    def has_nan(self, value: V) -> bool:
        """Is any element not a number?"""

    def count(self, value: V) -> int:
        """How many elements."""

    def restore(self, spec: KeySpec, value: V, arguments: Arguments, beside: Mapping[str, V]) -> BlockState[V]:
        """A block as another server had it."""

    def slot(self, value: V) -> Slot:
        """How a value is announced to another server."""

    def copy(self, value: V) -> V:
        """The same, in memory of its own."""

    def part(self, value: V, start: int, count: int) -> V:
        """So many elements from `start`."""
