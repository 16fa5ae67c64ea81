"""The fair share, against every cut there is."""

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradtide.even_share import even_share
from gradtide.fair_share import Cost, even_shares, fair_shares, longest_s, predict_balance

SECONDS = st.one_of(st.integers(0, 8).map(float), st.floats(0, 10, allow_subnormal=False))
COSTS = st.lists(st.builds(Cost, SECONDS, SECONDS), min_size=1, max_size=4)


@cache
def cuts(samples, owners, least):
    """Every cut of a batch, one a row."""
    places = np.stack(np.meshgrid(*[np.arange(least, samples + 1)] * (owners - 1), indexing="ij"), -1)
    first = places.reshape(-1, owners - 1)
    return np.column_stack([first, samples - first.sum(1)])[samples - first.sum(1) >= least]


@example([Cost(0.0, 0.0), Cost(4.0, 2.2250738585072014e-308)], 2, 1)  # more samples than a float can say, less than 0
@given(COSTS, st.integers(1, 64), st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_no_cut_of_a_batch_has_a_shorter_longest_part(costs, samples, least):
    shares = fair_shares(costs, samples, least)
    assert sum(shares) == samples
    if samples < least * len(costs):
        assert shares == even_shares(samples, len(costs))
        return
    assert min(shares) >= least
    fixed_s, sample_s = (np.array([getattr(cost, name) for cost in costs]) for name in ("fixed_s", "sample_s"))
    every = cuts(samples, len(costs), least) if len(costs) > 1 else np.array([[samples]])
    assert longest_s(costs, shares) == (fixed_s + sample_s * every).max(1).min()


def test_a_large_batch_is_cut_by_speed():
    costs = [Cost(0.0, 1.0), Cost(0.0, 1.0), Cost(0.0, 1 / 0.3)]
    assert fair_shares(costs, 1 << 20) == (455903, 455903, 136770)


def test_equal_costs_give_parts_that_differ_by_one_sample_at_most():
    shares = fair_shares([Cost(0.1, 0.2)] * 3, 100)
    assert sum(shares) == 100
    assert max(shares) - min(shares) == 1


def test_even_shares_are_those_of_the_even_cut():
    for samples, owners in ((10, 4), (3, 4), (64, 3)):
        sizes = [end - begin for begin, end in (even_share(samples, owner, owners) for owner in range(owners))]
        assert even_shares(samples, owners) == tuple(sizes)


def test_what_balance_saves_is_predicted_from_speeds():
    found = predict_balance((1, 1, 0.3), 230, 1e-3)
    assert found.fair == (100, 100, 30)
    assert found.fair_s == pytest.approx(0.1)
    assert found.even_s == pytest.approx(77 / 0.3 * 1e-3)
    assert found.gain == pytest.approx(77 / 30, rel=1e-12)
    assert predict_balance((2, 2), 10).gain == 1.0
