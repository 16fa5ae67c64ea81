"""bench reading: what it makes of what its workers measured; and all of it, once."""

import pytest

from gradtide.bench.training.reading import CONTENDERS, ReadingCase, bench_reading, share_of_time
from gradtide.errors import ConfigError


def test_shares_of_time_are_of_rounds_beside_each_other():
    assert share_of_time({"one": [1.0, 2.0, 4.0], "two": [0.5, 1.2, 1.6]}) == {"one": 1.0, "two": 0.5}


def test_reading_that_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="there must be a batch of samples"):
        bench_reading(ReadingCase(samples=10), 1, print)


@pytest.mark.slow
def test_every_contender_reads_each_sample_once():
    rows, _ = bench_reading(ReadingCase(64, 0.1, 16, 1), 1, lambda text: None)
    assert [row.name for row in rows] == list(CONTENDERS)
