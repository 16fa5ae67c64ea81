"""bench dashboard: a training is measured in turns, with a reader who is really sent something."""

import pytest

from gradtide.bench.training.watching import bench_watching
from gradtide.errors import ConfigError


@pytest.mark.quick
def test_turns_that_are_too_few_or_too_short_are_refused():
    with pytest.raises(ConfigError, match="2 rounds and turns of 1 s"):
        bench_watching(1, 5.0, print)


@pytest.mark.slow
def test_a_reader_is_sent_what_happens_while_the_training_goes_on():
    rows, watched, _ = bench_watching(2, 3.0, lambda text: None)
    assert [row.per_s > 0 for row in rows] == [True, True]
    assert watched.messages > 0
    assert watched.least <= watched.median <= watched.most
