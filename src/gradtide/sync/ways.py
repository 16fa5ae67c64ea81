"""What every way to synchronise can do."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from gradtide.store import Store

__all__ = ["EveryStep", "Way"]


class Way(Protocol):
    """One way to synchronise. Nobody needs to ask which one it is."""

    reason: str  # why it is this one, in a sentence

    # --- a gradient's way ---

    @property
    def one_weight(self) -> bool:
        """Whether a step has one weight, however many backwards it has."""

    def measure(self, weight: float) -> float:
        """What the gradient of a part counts here that is this share of the batch."""

    def ready(self, index: int, weight: float) -> None:
        """The gradient of a parameter is whole; backward goes on. `weight` is what this rank's gradient counts."""

    @property
    def workers_step(self) -> bool:
        """Whether each rank gets the whole gradient and takes the step itself, as one process would."""

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        """Where ranks step: afterwards every .grad is the one of all ranks. `late`: not in a backward, but at the step
        of a rank whose backward reached no parameter."""

    def saw(self) -> None:
        """A backward of this rank's part of a batch has ended."""

    def check_step(self) -> None:
        """Where ranks step: right before an optimizer does."""

    def stepped(self) -> None:
        """A step is over, whoever took it."""

    def step(self, weights: Sequence[float]) -> None:
        """Where ranks don't step by themselves: updates the parameters on every rank, and clears the gradients.
        `weights` are what each gradient counts."""

    def weigh(self, terms: float, otherwise: float) -> float:
        """What a mean over so many terms counts: all ranks ask, each for its own. `otherwise` is what it counts if
        nobody has a term: there may be more in a loss than that mean."""

    # --- besides gradients ---

    def edit(self) -> AbstractContextManager[None]:
        """In it the parameters may be changed, on all ranks at once; afterwards they are alike."""

    def share_buffers(self, root: int = 0) -> None:
        """One rank's buffers (the running statistics of batch normalisation, say) become everybody's."""

    def add_up(self, numbers: Tensor) -> Tensor:
        """The sum over all ranks of a group, in place. Over servers, where nobody waits just to know, our own."""

    @property
    def apart(self) -> int:
        """How many steps each rank has taken by itself since all of them were alike."""

    # --- who works together ---

    @property
    def is_collective(self) -> bool:
        """Whether the ranks are a group that steps as one, be it of one rank: when somebody comes, goes or dies, all of
        them form the next group. Otherwise each comes and goes by itself."""

    @property
    def led(self) -> bool:
        """Whether this rank was the first of those who took the last step: what one does for all is its to do."""

    def depart(self) -> None:
        """This rank is to go. What the others must know of it they are told; it goes when they can do without it."""

    def finish(self) -> None:
        """This rank takes no further step: waits until what it has sent has arrived."""

    def close(self) -> None:
        """Lets go of what it holds. Parameters and optimizer state are this process's own, as the last step left them.

        A step that could not be finished, because a peer died, never was.
        """

    # --- where the parameters are ---

    @property
    def store(self) -> Store | None:
        """Where gradients and values are exchanged, if that is on servers."""

    @property
    def servers_step(self) -> bool:
        """Whether servers take the step, so that the parameters and the optimizer's state are theirs."""

    def has_in_common(self, tensor: Tensor) -> bool:
        """Whether it lies in a view of memory that all ranks share, where an edit of one rank's own is seen anyway."""

    def ask_to_look(self) -> None:
        """With the next synchronisation this rank asks all others to look whether they are alike."""

    @property
    def asked_to_look(self) -> bool:
        """Whether a rank has asked, in the last one."""

    def begin_again(self) -> None:
        """After RolledBack: forgets what was under way, and takes the values that are there now."""


class EveryStep:
    """The part of a way that synchronises at every step: a gradient counts what its part of the batch does."""

    apart, one_weight, asked_to_look = 0, False, False

    def measure(self, weight: float) -> float:
        return weight

    def saw(self) -> None:
        pass

    def stepped(self) -> None:
        pass

    def has_in_common(self, tensor: Tensor) -> bool:
        return False

    def ask_to_look(self) -> None:
        pass
