"""bench dashboard: a training is measured in turns, with a reader who is really sent something."""

import random

import pytest

from gradtide.bench.training.turns import BLOCK, MeasuredTurn, compare
from gradtide.bench.training.watching import bench_watching
from gradtide.errors import ConfigError


@pytest.mark.quick
def test_turns_that_are_too_few_or_too_short_are_refused():
    with pytest.raises(ConfigError, match="2 blocks and turns of 1 s"):
        bench_watching(1, 5.0, print)


def made_blocks(cost, count):
    """Turns on a machine that gets slower all the time, by much more than the second way costs, and is never even."""
    draw, at, blocks = random.Random(1), 0, []
    for _ in range(count):
        block = []
        for way in BLOCK:
            speed = 1000.0 * (1 - 0.0005 * at) * draw.gauss(1.0, 0.02)
            block.append(MeasuredTurn(speed * (1 - cost * way), 1.0, 1.0, 0.1))
            at += 1
        blocks.append(block)
    return blocks


@pytest.mark.quick
def test_a_cost_of_three_percent_is_found_on_a_machine_that_changes_by_more():
    found = compare(made_blocks(0.03, 100), lambda turn: turn.samples / turn.seconds)
    assert found.low < 0.97 < found.high
    assert found.low <= found.median <= found.high < 0.99


@pytest.mark.quick
def test_no_cost_is_not_taken_for_one():
    found = compare(made_blocks(0.0, 100), lambda turn: turn.samples / turn.seconds)
    assert found.low < 1.0 < found.high


@pytest.mark.slow
def test_a_reader_is_sent_what_happens_while_the_training_goes_on():
    rows, cost, _ = bench_watching(2, 3.0, lambda text: None)
    assert [row.per_s > 0 for row in rows] == [True, True]
    assert cost.messages > 0
    assert cost.rate.low <= cost.rate.median <= cost.rate.high
    assert 0 < cost.dashboard_cpu < 1
