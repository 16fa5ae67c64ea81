"""How close the best plan comes to the bound on random wirings of few devices that nobody tuned to."""

import numpy as np
import pytest
from small_wirings import KINDS, TUNING, small_wiring

from gradtide.schedule.plan import plan
from gradtide.topology.model import NodeKind

USUAL, LARGE = 160 * 10**6, 10**9
WITHIN = {LARGE: 1.05, USUAL: 1.15}


def test_a_seed_gives_the_same_wiring_and_every_kind_has_up_to_twelve_devices():
    for seed in range(4 * len(KINDS)):
        wiring = small_wiring(seed)
        assert wiring == small_wiring(seed)
        assert 2 <= sum(node.kind is NodeKind.DEVICE for node in wiring.nodes) <= 12, wiring.name
    assert len({small_wiring(seed).name.rsplit("-", 1)[0] for seed in range(len(KINDS))}) == len(KINDS)


@pytest.mark.parametrize("seed", [TUNING + 119, TUNING + 58])  # 1.20 and 1.29 times the bound without whole trees
def test_a_usual_buffer_is_worth_a_search_where_routes_cross(seed: int):
    assert 1 - 1e-9 <= plan(small_wiring(seed), USUAL).best.ratio <= 1.06


@pytest.mark.parametrize("seed", [26, 138])
def test_a_machine_whose_switches_are_of_different_sizes_is_planned(seed: int):
    assert plan(small_wiring(seed), USUAL // 100).best.ratio >= 1 - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [LARGE, USUAL])
def test_plans_of_two_hundred_small_wirings_are_close_to_the_bound(size_bytes: int):
    found = {}
    for seed in range(200):
        wiring = small_wiring(seed)
        found[wiring.name] = plan(wiring, size_bytes).best.ratio
        assert found[wiring.name] >= 1 - 1e-9, wiring.name
    above = {name: round(each, 3) for name, each in found.items() if each > WITHIN[size_bytes]}
    middle, worst = float(np.median(list(found.values()))), max(found.values())
    print(f"{len(found)} wirings, median {middle:.3f}, worst {worst:.3f}, above {WITHIN[size_bytes]}: {above}")
    assert not above
