"""Where blocks live: even, stable, and few shards move."""

import itertools
from collections import Counter

import pytest

from gradtide.store.wire.placement import SHARDS, block_count, block_span, deal, key_hash, shard_of

pytestmark = pytest.mark.quick


def test_the_hash_of_a_key_is_the_same_in_every_process() -> None:
    assert key_hash("conv1.weight") == 3410522421
    assert shard_of("conv1.weight", 3) == (3410522421 + 3) % SHARDS


@pytest.mark.parametrize("servers", range(2, 17))
def test_twenty_blocks_of_one_key_are_dealt_as_evenly_as_whole_blocks_can_be(servers: int) -> None:
    owners = deal(servers)
    for key in ("w", "mlp", "fc1.weight", "a.much.longer.name"):
        held = Counter(owners[shard_of(key, block)] for block in range(20))
        assert max(held.values()) <= -(-20 // servers) + (1 if SHARDS % servers and wraps(key) else 0)


def wraps(key: str) -> bool:
    return key_hash(key) % SHARDS + 20 > SHARDS


@pytest.mark.parametrize("servers", range(2, 17))
@pytest.mark.parametrize("name", ["layer{}.weight", "{}", "embedding/{}/row"])
def test_the_fullest_server_holds_at_most_a_tenth_more_than_its_share_of_small_keys(servers: int, name: str) -> None:
    owners = deal(servers)
    held = Counter(owners[shard_of(name.format(i), 0)] for i in range(10_000))
    assert max(held.values()) <= 1.1 * 10_000 / servers


def test_spans_cover_every_element_once() -> None:
    elements = 10_000_000
    spans = [block_span(block, elements, 4) for block in range(block_count(elements, 4))]
    assert spans[0][0] == 0
    assert spans[-1][1] == elements
    assert all(left[1] == right[0] for left, right in itertools.pairwise(spans))
    assert block_count(0, 4) == 1
