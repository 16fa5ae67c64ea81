"""The head, with a virtual clock instead of sockets: every decision is FleetJob's own."""

import selectors
from collections.abc import Callable

from gradtide.launch.nodes.fleet import FleetJob
from gradtide.launch.output import Output
from gradtide.launch.spec import Spec
from gradtide.testing.fleet.checks import Witness

__all__ = ["SimulatedHead"]


class _Noted(Output):
    """What the head says goes to the witness."""

    def __init__(self, witness: Witness, clock: Callable[[], float], selector: selectors.BaseSelector) -> None:
        super().__init__(1, selector)
        self._witness, self._time = witness, clock

    def say(self, text: str) -> None:
        self._witness.note(self._time(), text)

    def tell(self, rank: int, text: str) -> None:
        self.say(text)


class _Ports:
    """Stores that nobody opens."""

    ready = True

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        self._next += 1
        return self._next

    def give_back(self, port: int) -> None:
        pass


class SimulatedHead(FleetJob):
    """`turn` is one round of its loop."""

    def __init__(self, spec: Spec, witness: Witness, clock: Callable[[], float], lease_s: float) -> None:
        super().__init__(
            spec, lambda workers, selector: _Noted(witness, clock, selector), _Ports(), lease_s=lease_s, clock=clock
        )

    @property
    def is_over(self) -> bool:
        return not self.job.running

    def turn(self) -> None:
        self._regroup()
        self._act(self.job.later(self._clock()))
        self.bury_nodes()

    def _close_nodes(self) -> None:
        pass
