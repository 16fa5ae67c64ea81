"""What a strategy is asked for, and the register that strategies stand in by name."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gradtide.errors import ScheduleError
from gradtide.schedule.model import Collective, Schedule
from gradtide.topology.model import Topology
from gradtide.topology.routes import Routes

__all__ = ["STRATEGIES", "Builder", "NotApplicable", "Request", "strategy"]


class NotApplicable(ScheduleError):
    """This strategy can't serve this request; the text says why."""


@dataclass(frozen=True)
class Request:
    """One collective of so many bytes between these devices of a topology."""

    topology: Topology
    devices: tuple[str, ...]
    size_bytes: int
    collective: Collective = "all_reduce"
    root: int = 0  # of broadcast and reduce: an index into devices
    routes: Routes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "routes", Routes(self.topology))


Builder = Callable[[Request], Schedule]
STRATEGIES: dict[str, Builder] = {}  # filled once, by the imports in strategies/__init__.py


def strategy(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder: once strategies/__init__.py imports it, it appears in every table and every test."""

    def register(builder: Builder) -> Builder:
        assert name not in STRATEGIES, f"two strategies are called {name}"
        STRATEGIES[name] = builder
        return builder

    return register
