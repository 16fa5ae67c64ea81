"""Where a block lives: key -> blocks -> shards -> servers.

Block i of a key belongs to shard (hash(key) + i) mod 1,024, by a hash that is the same in every process. The table
says which server owns each shard: `owners[shard]` is an index into the list of servers.

The first deal gives shard s to server s mod n. So the consecutive blocks of a big key go round the servers in turn:
of b blocks no server gets more than ceil(b / n), the least that whole blocks allow, and servers own equally many
shards to within one. A later `rebalance` moves the fewest shards that keep all within one of even. Which ones it
moves keeps neighbours apart where it can, but after several changes the turn is no longer perfect.
"""

from collections.abc import Sequence
from zlib import crc32

__all__ = [
    "BLOCK_BYTES",
    "SHARDS",
    "block_count",
    "block_elements",
    "block_span",
    "deal",
    "key_hash",
    "rebalance",
    "shard_of",
]

SHARDS = 1024
BLOCK_BYTES = 4 << 20


def key_hash(key: str) -> int:
    """The same in every process and version of Python, which hash() is not."""
    return crc32(key.encode())


def shard_of(key: str, block: int) -> int:
    """The shard that block number `block` of a key belongs to."""
    return (key_hash(key) + block) % SHARDS


def block_elements(item_bytes: int) -> int:
    """How many elements a full block holds."""
    return BLOCK_BYTES // item_bytes


def block_count(elements: int, item_bytes: int) -> int:
    """How many blocks a key of so many elements has; an empty one has one, so that it lives somewhere."""
    return max(1, -(-elements // block_elements(item_bytes)))


def block_span(block: int, elements: int, item_bytes: int) -> tuple[int, int]:
    """The elements [start, stop) of the flattened value that a block holds."""
    per_block = block_elements(item_bytes)
    return min(block * per_block, elements), min((block + 1) * per_block, elements)


def deal(servers: int) -> tuple[int, ...]:
    """The first table: shards in turn."""
    if servers < 1:
        raise ValueError("a table needs at least one server")
    return tuple(shard % servers for shard in range(SHARDS))


def rebalance(owners: Sequence[int | None], servers: int) -> tuple[int, ...]:
    """A table for `servers` servers that moves the fewest shards of `owners` and is even to within one.

    `owners[shard]` is the index of its server among those that stay (the caller renumbers), or None when its server
    is gone. Orphans must move; beyond that only what a server holds above its quota does.
    """
    quotas = _quotas(owners, servers)
    held = [0] * servers
    for owner in owners:
        if owner is not None:
            held[owner] += 1
    surplus = [max(0, have - quota) for have, quota in zip(held, quotas, strict=True)]
    moving = [shard for shard, owner in enumerate(owners) if owner is None]
    moving += _spread(owners, surplus)
    missing = [max(0, quota - have) for have, quota in zip(held, quotas, strict=True)]
    return _place(list(owners), sorted(moving), missing)


def _quotas(owners: Sequence[int | None], servers: int) -> list[int]:
    """Even shares; the one-larger ones go to those who hold the most already, so that the fewest move."""
    small, larger = divmod(len(owners), servers)
    held = [0] * servers
    for owner in owners:
        if owner is not None:
            held[owner] += 1
    fullest = sorted(range(servers), key=lambda server: (-held[server], server))[:larger]
    return [small + (server in fullest) for server in range(servers)]


def _spread(owners: Sequence[int | None], surplus: list[int]) -> list[int]:
    """For each server that holds too many, as many of its shards as it has too many, evenly spaced along its own."""
    moving: list[int] = []
    for server, count in enumerate(surplus):
        own = [shard for shard, owner in enumerate(owners) if owner == server]
        moving += [own[(2 * i + 1) * len(own) // (2 * count)] for i in range(count)]
    return moving


def _place(owners: list[int | None], moving: list[int], missing: list[int]) -> tuple[int, ...]:
    """Hand the moving shards to those that miss some, the one that misses most first."""
    for shard in moving:
        taker = max(range(len(missing)), key=lambda server: (missing[server], -server))
        owners[shard] = taker
        missing[taker] -= 1
    assert all(owner is not None for owner in owners)
    return tuple(owner for owner in owners if owner is not None)
