"""bench store with the smallest figures: every contender takes part, and a mistake is one clear line."""

import pytest

from gradtide.bench.store import StoreCase, bench_store
from gradtide.errors import ConfigError


@pytest.mark.slow
def test_every_contender_takes_its_turns():
    results = bench_store(StoreCase(4096, idle=20, tls=True), rounds=2, steps=20, tell=lambda text: None)
    found = {result.name: result for result in results}
    assert {"bare pair", "torch copy_", "gradtide", "gradtide, 20 idle sockets"} <= set(found)
    assert {"gradtide, TCP", "gradtide, TCP with TLS"} <= set(found)
    assert all(0 < r.seconds_min <= r.seconds <= r.seconds_max for r in results)
    assert found["bare pair"].to_bare == 1.0


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (StoreCase(3), "a size at least 4 bytes"),
        (StoreCase(4096, idle=-1), "ask for 0 or more"),
        (StoreCase(4096, placement="here"), "choose any, apart or together"),
    ],
)
def test_a_mistake_is_one_clear_line(case: StoreCase, text: str):
    with pytest.raises(ConfigError, match=text):
        bench_store(case, rounds=1, steps=1, tell=lambda said: None)
