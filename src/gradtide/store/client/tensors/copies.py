"""What a worker has of keys that come back compressed, by block: what a round's answer is added to.

It is apart from the user's own tensors, who may change them. A pull takes its blocks out when it begins and puts them
back when it is over, so nothing is added twice: whoever pulls meanwhile, or after a pull that failed, gets all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["RoundCopies", "RoundCopy"]

Name = tuple[str, int]  # key, block


@dataclass(frozen=True, slots=True)
class RoundCopy:
    """The values after a round. `lost`: the epoch in which the shard last lost something, as it was known then."""

    round: int
    lost: int
    values: Tensor


@dataclass(slots=True)
class RoundCopies:
    """By block. Guarded by the engine's lock."""

    blocks: dict[Name, RoundCopy] = field(default_factory=dict)

    def take(self, name: Name, round_: int, lost: int) -> Tensor | None:
        """The values after this round, if they are here and nothing was lost since."""
        copy = self.blocks.pop(name, None)
        return copy.values if copy is not None and (copy.round, copy.lost) == (round_, lost) else None

    def put(self, name: Name, copy: RoundCopy) -> None:
        self.blocks[name] = copy

    def forget(self, names: Iterable[Name]) -> None:
        for name in names:
            self.blocks.pop(name, None)

    def clear(self) -> None:
        self.blocks.clear()
