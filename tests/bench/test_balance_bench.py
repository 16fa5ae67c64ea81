"""bench balance: what it makes of what its workers measured; and all of it, once."""

import pytest

from gradtide.bench.frugal.balance import CONTENDERS, BalanceCase, BalanceFound, _predict, bench_balance
from gradtide.errors import ConfigError


def test_a_balanced_step_is_predicted_from_an_even_one():
    """Worker 1 takes three times as long; 10 ms of an even step are not computing."""
    workers = [[(0.050, 50), (0.051, 50), (0.049, 50)], [(0.150, 50)] * 3]
    predicted_s, gain = _predict(workers, 0.160, 100)
    assert predicted_s == pytest.approx(0.085)
    assert gain == pytest.approx(0.160 / 0.085)


def test_ratios_are_of_rounds_beside_each_other():
    seconds = {"even": [2.0, 4.0, 9.0], "balanced": [1.0, 2.0, 3.0]}
    seconds |= {"alike, even": [1.0, 1.0, 2.0], "alike, balanced": [1.0, 1.0, 1.0]}
    found = BalanceFound([], seconds, {}, 1.0, 2.0)
    assert found.gain == 2.0
    assert found.alike == 1.0
    assert found.step_s["balanced"] == 2.0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="0 rounds of 1 steps; there must be 1 of each or more"):
        bench_balance(BalanceCase(), 0, 1, print)
    with pytest.raises(ConfigError, match="the batch needs 2 samples or more"):
        bench_balance(BalanceCase(batch_size=1), 1, 1, print)


@pytest.mark.slow
def test_every_contender_runs():
    found = bench_balance(BalanceCase(batch_size=32), 1, 4, lambda text: None)
    assert [row.name for row in found.rows] == list(CONTENDERS)
    assert {sum(shares) for shares in found.shares.values()} == {32}
