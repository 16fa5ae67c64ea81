"""How close plans of clusters that are alike come to the bound, on clusters that nobody tuned to."""

import pytest
from alike_clusters import alike_cluster

from gradtide.schedule.bound import bound
from gradtide.schedule.classes.compose import COMPOSED, compose
from gradtide.schedule.plan import plan, request_for
from gradtide.schedule.request import NotApplicable


def ratio(name: str, size_bytes: int) -> float:
    """The best composition's time over the bound; of few devices the best of all strategies'."""
    request = request_for(name, size_bytes)
    if len(request.devices) <= 32:
        return plan(name, size_bytes).best.ratio
    seconds = []
    for kind in COMPOSED:
        try:
            seconds.append(compose(request, kind).run.seconds)
        except NotApplicable:
            continue
    return min(seconds) / bound(request).seconds


@pytest.mark.slow
@pytest.mark.parametrize(("size_bytes", "most"), [(10**9, 1.05), (160 * 10**6, 1.15)])
def test_plans_of_two_hundred_alike_clusters_are_close_to_the_bound(size_bytes: int, most: float):
    found = {}
    for seed in range(200):
        name = alike_cluster(seed)
        found[name] = ratio(name, size_bytes)
        assert found[name] >= 1 - 1e-9, name
    above = {name: round(each, 3) for name, each in found.items() if each > most}
    print(f"{len(found)} clusters, worst {max(found.values()):.3f}, above {most}: {above}")
    assert not above
