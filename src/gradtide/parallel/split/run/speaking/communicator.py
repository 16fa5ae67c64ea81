"""How a device of a split model speaks to the others: one protocol, over queues between threads or between processes.

tests/parallel/split/communicating.py is the contract of both.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["Communicator", "Packet", "PendingSum"]

Packet = Tensor | int | float | bool | None  # what a message is made of; a tensor's requires_grad goes with it


class PendingSum(Protocol):
    """Something that goes on in the background."""

    def wait(self) -> None:
        """Returns when it is done; raises what went wrong."""


class Communicator(Protocol):
    """One device's way to the others. Every wait has a deadline, and says for whom it waited in vain.

    Whatever comes out may be another device's memory: copy it before changing it in place.
    """

    rank: int  # this device's number
    size: int  # devices
    keeps_messages: bool  # whether what was sent can be received even if who sent it fails right afterwards

    def send(self, values: Sequence[Packet], to: int, tag: int) -> None:
        """Begins to send, and returns at once. The tensors must stay as they are until `finish`."""

    def receive(self, source: int, tag: int) -> list[Packet]:
        """The next message of a device with this tag."""

    def gather(self, tensor: Tensor, members: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Every member's tensor, in the order of `members`, which is the same for all. `shapes`: of theirs."""

    def swap(self, parts: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
        """What every member has for this one, in the order of `members`; `parts` is what this one has for each. What
        they have for this one is shaped like what this one has for itself."""

    def add_up(self, tensor: Tensor, members: Sequence[int]) -> Tensor:
        """The sum of the members' tensors, added in the order of their numbers, with the same bits for all."""

    def begin_sum(self, tensor: Tensor, members: Sequence[int], at_once: bool = False) -> PendingSum:
        """In the background, the tensor becomes what add_up gives. Exchanges don't queue behind it. at_once: the caller
        has nothing to do meanwhile."""

    def finish(self) -> None:
        """Returns when all that was sent has left."""

    def close(self) -> None:
        """The end, in good order."""

    def abort(self, error: BaseException) -> None:
        """The end, because of an error here: the others fail at once."""
