"""The sentence under a plan names what made the difference: bytes or steps, found here by taking latencies away."""

from dataclasses import replace
from itertools import product

import pytest

from gradtide.schedule.explain import CLOSE
from gradtide.schedule.plan import plan
from gradtide.schedule.predict.simulate import simulate
from gradtide.topology.files import topology_named

TOPOLOGIES = [
    "pcie-4gpu", "dgx1-v100", "dgx1-v100-pcie", "dgx-a100", "ring:5", "ring:8", "star:6", "torus:3x3", "torus:2x2x2",
    "ethernet-cluster:2x2@25", "ethernet-cluster:4x1@100", "rail:2x4x2@100", "leaf-spine:4x2x2@100/4",
]  # fmt: skip
SIZES = [int(4_096 * 2.4**step) for step in range(16)]  # 4 KB to 2 GB


def named_reason(text):
    """What the sentence says of the next best: bytes, steps, or nothing where both are as good."""
    if "because" not in text:
        assert "is as good within" in text, text
        return ""
    because = text.partition("because")[2]
    reasons = {"it keeps": "bytes", "its links wait": "bytes", "it takes": "steps", "the latency of its": "steps"}
    return next(reason for words, reason in reasons.items() if because.strip().startswith(words))


def check_reason(name, size):
    """Without latencies, what is left of the difference is due to bytes; what goes away, to steps."""
    topology = topology_named(name)
    found = plan(topology, size)
    text, best = found.explain(), found.table[0]
    said = named_reason(text)
    if not said:
        return said
    other = next(row for row in found.table if f"next comes {row.name} with" in text)
    assert other.seconds > best.seconds * CLOSE, text
    at_once = replace(topology, links=tuple(replace(link, latency_s=0.0) for link in topology.links))
    by_bytes = [simulate(row.schedule, at_once, size).seconds for row in (best, other)]
    left, whole = by_bytes[1] - by_bytes[0], other.seconds - best.seconds
    if abs(left / whole - 0.5) > 0.02:
        assert said == ("bytes" if left > whole / 2 else "steps"), (name, size, text, left, whole)
    if "it takes" in text.partition("because")[2]:
        assert other.steps > best.steps, text
    return said


@pytest.mark.parametrize(("name", "size"), [("pcie-4gpu", 160_000_000), ("dgx1-v100", 20_000), ("star:6", 300_000)])
def test_the_reason_that_is_named_made_the_difference(name, size):
    check_reason(name, size)


@pytest.mark.slow
def test_the_reasons_of_two_hundred_plans_made_the_difference():
    said = [check_reason(name, size) for name, size in product(TOPOLOGIES, SIZES)]
    assert len(said) >= 200
    assert min(said.count("bytes"), said.count("steps")) > 20, (said.count("bytes"), said.count("steps"))
