"""What a server holds, for who asks: its keys, and how it is. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gradtide.store.shard.shard import Shard
from gradtide.store.wire.messages import Health, KeyInfo, OpenRound

if TYPE_CHECKING:
    from gradtide.store.shard.shard_set import ShardSet

__all__ = ["describe_health", "list_keys"]


def list_keys(shards: Iterable[Shard[Any]], prefix: str) -> tuple[KeyInfo, ...]:
    """The keys that have a block in these shards, by name."""
    found: dict[str, list[tuple[int, Shard[Any]]]] = {}
    for shard in shards:
        for key, block in shard.blocks:
            if key.startswith(prefix):
                found.setdefault(key, []).append((block, shard))
    return tuple(_describe_key(key, sorted(found[key], key=lambda place: place[0])) for key in sorted(found))


def _describe_key(key: str, places: list[tuple[int, Shard[Any]]]) -> KeyInfo:
    blocks, shard = [shard.blocks[key, block] for block, shard in places], places[0][1]
    return KeyInfo(
        spec=blocks[0].spec,
        blocks=tuple(block for block, _ in places),
        shards=tuple(shard.number for _, shard in places),
        size_bytes=sum(block.size_bytes for block in blocks),
        version=max(shard.version for _, shard in places),
        round=min(block.closed for block in blocks),
        beside={name: shard.arithmetic.slot(value) for name, value in blocks[0].state.beside().items()},
    )


def describe_health(host: "ShardSet[Any]") -> Health:
    """For who looks from outside."""
    lag: dict[str, int] = {}
    held, size_bytes, rounds = 0, 0, dict[str, OpenRound]()
    for shard in host.shards.values():
        size_bytes += sum(block.size_bytes for block in shard.blocks.values())
        if shard.log is not None:
            held += shard.log.waiting
            for name, behind in shard.log.lag().items():
                lag[name] = lag.get(name, 0) + behind
        for (key, _), block in shard.blocks.items():
            waited = block.waited_for(shard.members)
            if waited is not None:
                rounds.setdefault(key, OpenRound(key, *waited))
    lapsed = host.lapsed and host.lease.was_granted
    return Health(host.name, host.epoch, lapsed, size_bytes, lag, held, tuple(rounds.values()))
