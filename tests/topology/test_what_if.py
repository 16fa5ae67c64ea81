import time

import pytest

from clock import at_most
from gradtide.errors import TopologyError
from gradtide.topology.presets import preset
from gradtide.topology.what_if import altered, degraded, parse_degrade, without

pytestmark = pytest.mark.quick


def test_without_takes_a_node_a_machine_a_link_or_all_that_match():
    whole = preset("superpod:2")
    names = {node.name for node in whole.nodes}
    assert names - {node.name for node in without(whole, "host1.nic3").nodes} == {"host1.nic3"}
    assert {node.machine for node in without(whole, "host1").nodes} == {"host0", ""}
    assert len(whole.links) - len(without(whole, "leaf0->spine0").links) == 1
    assert {n for n in names if n.startswith("spine")} == names - {n.name for n in without(whole, "spine*").nodes}
    assert without(whole, "host1.nic3").name == "superpod:2 without host1.nic3"


def test_degrade_slows_all_links_of_what_is_named_and_no_other():
    whole = preset("superpod:2")
    slow = degraded(whole, "host1.nic3", 0.1)
    changed = [(a, b) for a, b in zip(whole.links, slow.links, strict=True) if a != b]
    assert len(changed) == 4
    assert all("host1.nic3" in (a.source, a.target) for a, _ in changed)
    assert all(b.bytes_per_s == a.bytes_per_s * 0.1 for a, b in changed)


def test_the_two_come_one_after_the_other():
    assert altered(preset("superpod:2"), ["spine0"], ["leaf*=2", "host0=0.5"]).name == (
        "superpod:2 without spine0, leaf* × 2, host0 × 0.5"
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("host1.nic9", "superpod:2 has no 'host1.nic9'; did you mean 'host1.nic7'?"),
        ("hots1", "superpod:2 has no 'hots1'; did you mean 'host1'?"),
        ("leaf0->spine99", "superpod:2 has no 'leaf0->spine99'; did you mean 'leaf0->spine"),
        ("nic3", "superpod:2 has no 'nic3'; did you mean 'host0.nic3', or '*.nic3' for all?"),
        ("rack*", "superpod:2 has no 'rack*'"),
        ("", "superpod:2 has no ''"),
        ("host*", "without 'host*', no node is a device"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(name, answer):
    with pytest.raises(TopologyError) as caught:
        without(preset("superpod:2"), name)
    assert str(caught.value).startswith(answer)
    assert "\n" not in str(caught.value)


def test_what_is_left_must_still_connect():
    with pytest.raises(TopologyError, match=r"without 'ethernet', device 'host1.gpu0' can't be reached from"):
        without(preset("ethernet-cluster:2x2@10"), "ethernet")


@pytest.mark.parametrize("text", ["host3.nic0", "host3.nic0=", "host3.nic0=x", "=", ""])
def test_a_degrade_without_a_factor_is_refused(text):
    with pytest.raises(TopologyError, match=r"is not NAME=FACTOR; write for example host3.nic0=0.1"):
        parse_degrade(text)


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf", "1e9"])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(TopologyError, match="times as fast, not"):
        altered(preset("ring:3"), [], [f"gpu0={factor}"])


def test_an_unknown_name_among_ten_thousand_devices_is_answered_in_a_second():
    whole = preset("superpod:1250")
    start = time.process_time()
    with pytest.raises(TopologyError, match="did you mean"):
        without(whole, "host12345.nic0")
    with pytest.raises(TopologyError, match=r"did you mean 'host1249.nic"):
        without(whole, "host1249.nic9")
    assert time.process_time() - start < at_most(3)
