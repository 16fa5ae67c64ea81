"""A worker's lease, as it sees it: how long it may go on without hearing from the registrar. Pure.

It counts from when the worker sent a beat that was answered, while the registrar counts from when it heard one: so a
worker has always stopped before the registrar gives its place to another.
"""

from dataclasses import dataclass, field

__all__ = ["WorkerLease"]


@dataclass(slots=True)
class WorkerLease:
    """State only."""

    lease_s: float = 0.0  # 0: it was not told yet
    until_s: float = 0.0  # it may go on
    _sent_s: dict[int, float] = field(default_factory=dict)  # beats that were not answered yet, by number
    _number: int = 0
    _last_s: float = 0.0  # when the last one was sent
    _looked_s: float = 0.0
    _chance_s: float = 0.0  # until then it may still learn that it is in the job; it does not go on meanwhile

    def begin(self, now_s: float) -> int:
        """A beat is sent now: its number."""
        self._number += 1
        self._sent_s[self._number] = self._last_s = now_s
        return self._number

    def answered(self, number: int, lease_s: float) -> None:
        sent_s = self._sent_s.get(number)
        self.lease_s = lease_s
        if sent_s is not None:
            self.until_s = max(self.until_s, sent_s + lease_s)
            self._sent_s = {later: sent for later, sent in self._sent_s.items() if later > number}

    def is_due(self, now_s: float) -> bool:
        """Whether to send a beat."""
        return self.lease_s > 0 and now_s >= self._last_s + self.lease_s / 4

    def is_good(self, now_s: float) -> bool:
        return self.lease_s == 0 or now_s <= self.until_s

    def is_over(self, now_s: float) -> bool:
        """To be asked several times a lease: whether it has to end itself. One that stood still, with its machine or
        under a debugger, may ask once more whether it is still in the job."""
        if self.lease_s and now_s - self._looked_s > self.lease_s / 2:
            self._chance_s = now_s + self.lease_s
        self._looked_s = now_s
        return self.lease_s > 0 and now_s > max(self.until_s, self._chance_s)
