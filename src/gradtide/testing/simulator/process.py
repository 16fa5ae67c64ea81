"""What every simulated process can suffer: it is killed, or stopped for a while."""

from collections.abc import Callable

__all__ = ["Process"]


class Process:
    """Something that lives until it is killed; while it is stopped, what comes for it waits."""

    def __init__(self) -> None:
        self.alive = True
        self._stops = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stops > 0

    def deliver(self, action: Callable[[], None]) -> None:
        if self.stopped:
            self._waiting.append(action)
        elif self.alive:
            action()

    def kill(self) -> None:
        self.alive = False

    def stop(self) -> None:
        """Until it is told to go on as often as it was stopped."""
        self._stops += 1

    def go_on(self) -> None:
        self._stops -= 1
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.deliver(action)
