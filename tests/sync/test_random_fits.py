"""Small calls of `fit`, drawn at random: each gives what a loop by hand gives, on one device and on several.

40 of them in every run; `scripts/test -m slow -k random_fits` runs 500.
"""

import pytest
import random_fits
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_layers import KINDS, SPARSE

DENSE = [None, *(kind for kind in KINDS if kind not in SPARSE)]


@st.composite
def fits(draw):
    case = {
        "seed": draw(st.integers(0, 99)),
        "kinds": draw(st.lists(st.sampled_from(DENSE), max_size=2)),
        "samples": draw(st.integers(9, 23)),
        "batch": draw(st.integers(3, 8)),
        "accumulate": draw(st.sampled_from([1, 1, 2])),
        "devices": draw(st.integers(1, 3)),
        "epochs": draw(st.integers(1, 3)),
        "optimizer": draw(st.sampled_from(["SGD", "Adam", "AdamW", "RMSprop"])),
        "lr": draw(st.sampled_from([0.1, 0.01])),
        "strategy": draw(st.sampled_from(["sharded", "ring", "root"])),
    }
    if draw(st.booleans()):
        case["clip_norm"] = draw(st.sampled_from([0.05, 0.5]))
    if random_fits.EDITS and draw(st.booleans()):
        case["edit"] = draw(st.sampled_from(random_fits.EDITS))
    return case


def check(case):
    wanted, found = random_fits.by_hand(case), random_fits.by_fit(case)
    assert found[0] == pytest.approx(wanted[0], abs=1e-10, rel=1e-10)
    for a, b in zip(found[1], wanted[1], strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10), f"off by {(a - b).abs().max():.3g}"


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_random_fits_give_what_a_loop_by_hand_gives(count):
    @seed(36)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(case=fits())
    def one(case):
        check(case)

    one()
