"""How a server goes: asked once (SIGTERM) when its shards are elsewhere, asked twice or for too long at once."""

from torch import Tensor

from gradtide.errors import StoreError
from gradtide.store.shard.shard_set import ShardSet

__all__ = ["DRAIN_S", "Draining"]

DRAIN_S = 120.0


class Draining:
    """What a server's loop asks each turn: is it over? `ask` may be called by a signal handler."""

    def __init__(self, shard_set: ShardSet[Tensor], limit_s: float) -> None:
        self._shard_set, self._limit_s = shard_set, limit_s
        self._asked = 0
        self._until_s: float | None = None
        self._failure = ""

    def ask(self) -> None:
        self._asked += 1

    def is_over(self, now_s: float) -> bool:
        shard_set = self._shard_set
        if self._asked and self._until_s is None:
            self._until_s = now_s + self._limit_s
            shard_set.drain()
        if shard_set.dismissed or self._until_s is None:
            return shard_set.dismissed
        lease = shard_set.lease
        if self._asked > 1:
            self._failure = "was told twice to go"
        elif now_s > self._until_s:
            self._failure = f"could not be emptied within {self._limit_s:g} s"
        elif shard_set.others_stay and now_s > lease.leased_until_s + 2 * lease.lease_s:
            self._failure = "can't be emptied, for the coordinator does not answer"
        return bool(self._failure)

    def check(self) -> None:
        """Raises when something was left behind that another server could have taken."""
        if self._failure:
            held, name = len(self._shard_set.owned), self._shard_set.name
            raise StoreError(f"{name} {self._failure}; it was still primary of {held} shards, see gradtide status")
