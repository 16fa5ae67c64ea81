import pytest

from gradtide.schedule.bound import bound
from gradtide.schedule.plan import request_for
from gradtide.schedule.upgrade import upgrade_text, worth_of_each
from gradtide.topology.presets import preset
from gradtide.topology.what_if import degraded

pytestmark = pytest.mark.quick


def test_what_is_tight_everywhere_is_worth_what_it_gets():
    worth = worth_of_each(request_for("ethernet-cluster:3x2@10", 10**9))
    assert next(iter(worth)) == "nic-ethernet"
    assert next(iter(worth.values())) == pytest.approx(1 - 1 / 1.1, rel=1e-6)
    assert sorted(worth.values())[:-1] == [0.0] * (len(worth) - 1)


def test_the_slow_nic_is_a_kind_of_its_own_and_comes_first():
    slow = degraded(preset("rail:2x2x2@100"), "host1.nic0", 0.5)
    request = request_for(slow, 10**9)
    worth = worth_of_each(request)
    assert "nic-leaf (6.25 GB/s)" in worth
    faster = request_for(degraded(preset("rail:2x2x2@100"), "host1.nic0", 0.55), 10**9)
    assert worth["nic-leaf (6.25 GB/s)"] == pytest.approx(1 - bound(faster).seconds / bound(request).seconds, abs=1e-6)


def test_the_words_name_the_most_valuable_first_and_what_is_worth_nothing():
    text = upgrade_text({"leaf-spine": 0.07, "nic-leaf": 0.012, "gpu-nvswitch": 0.0})
    assert text == (
        "Upgrade leaf-spine first: 10 % more on leaf-spine is worth 7.0 %; 10 % more on nic-leaf is worth 1.2 %; "
        "on gpu-nvswitch nothing."
    )
    assert upgrade_text({"a-b": 0.0, "c-d": 0.0}) == (
        "10 % more on any one kind of wire is worth nothing: several kinds are tight at once."
    )


def test_any_bound_will_do():
    request = request_for("ring:4", 10**6)
    assert worth_of_each(request, 1.0, lambda asked: 1 / asked.topology.links[0].bytes_per_s) == {"gpu-gpu": 0.5}
