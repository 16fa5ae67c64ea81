"""Where a block lives: key -> blocks -> shards -> servers.

Block i of a key belongs to shard (hash(key) + i) mod 1,024, by a hash that is the same in every process. The table
says which server owns each shard: `owners[shard]` is an index into the list of servers.

The first deal gives shard s to server s mod n. So the consecutive blocks of a big key go round the servers in turn:
of b blocks no server gets more than ceil(b / n), the least that whole blocks allow, and servers own equally many
shards to within one. When servers come and go (moving.py, assignment.py) the fewest shards move that keep this even;
neighbours are kept apart, but the turn is no longer perfect.
"""

from zlib import crc32

__all__ = [
    "BLOCK_BYTES",
    "SHARDS",
    "beside",
    "block_count",
    "block_elements",
    "block_span",
    "deal",
    "key_hash",
    "key_of",
    "shard_of",
]

_BESIDE = "\0beside\0"

SHARDS = 1024
BLOCK_BYTES = 4 << 20


def key_hash(key: str) -> int:
    """The same in every process and version of Python, which hash() is not."""
    return crc32(key.encode())


def shard_of(key: str, block: int) -> int:
    """The shard that block number `block` of a key belongs to."""
    return (key_hash(key_of(key)[0]) + block) % SHARDS


def beside(key: str, name: str = "") -> str:
    """What is pulled to read, outside of rounds, what the rule of a key keeps by this name; without one, the value."""
    return f"{key}{_BESIDE}{name}"


def key_of(pulled: str) -> tuple[str, str | None]:
    """The key, and what beside it; None: nothing, it is a key."""
    key, mark, name = pulled.partition(_BESIDE)
    return key, name if mark else None


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
