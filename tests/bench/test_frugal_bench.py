"""bench frugal: its arithmetic, who takes part, and what it draws. The measuring itself needs two hosts."""

import importlib.util
import math

import pytest
import torch

from gradtide.bench.frugal.accuracy import AccuracySettings, _rows
from gradtide.bench.frugal.learner import BATCH, LearningCurve, _batches, ways_of
from gradtide.bench.frugal.paired import paired_difference
from gradtide.bench.frugal.pictures import draw_accuracy
from gradtide.bench.frugal.speed import SpeedSettings, _missing, _predict
from gradtide.errors import ConfigError

WAYS = list(ways_of(()))


@pytest.mark.quick
def test_the_interval_of_paired_differences_is_students():
    mean, half = paired_difference([0.81, 0.80, 0.83, 0.79], [0.80, 0.80, 0.80, 0.80])
    assert mean == pytest.approx(0.0075)
    deviation = math.sqrt(sum((d - 0.0075) ** 2 for d in (0.01, 0.0, 0.03, -0.01)) / 3)
    assert half == pytest.approx(3.182 * deviation / 2)
    with pytest.raises(ConfigError, match="2 to 31 pairs"):
        paired_difference([1.0], [1.0])


def curves(final):
    return [
        LearningCurve(name, seed, [100, 200], [0.5, final[name] + seed / 100], [1.0 * n, 2.0 * n], [1.0, 2.0 * n])
        for n, name in enumerate(WAYS, 1)
        for seed in (1, 0)
    ]


def test_every_way_is_compared_with_training_together_seed_by_seed():
    rows = _rows(curves({name: 0.8 + number / 10 for number, name in enumerate(WAYS)}), WAYS)
    assert [row.name for row in rows] == WAYS
    assert rows[0].difference is None
    assert rows[2].difference == pytest.approx(0.2)
    assert rows[2].half_width == pytest.approx(0.0, abs=1e-12)  # the seeds' noise is in both
    assert (rows[1].megabytes, rows[1].seconds) == (4.0, 4.0)


def test_all_ways_of_a_seed_see_the_same_batches():
    data = (torch.arange(500.0), torch.arange(500))
    first, again, other = (_batches(data, seed, 6) for seed in (3, 3, 4))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0][0])
    assert [len(x) for x, _ in first] == [BATCH] * 6
    assert len(torch.cat([x for x, _ in first])[:500].unique()) == 500  # an epoch before anything comes again


def test_the_picture_is_written_whole(tmp_path):
    draw_accuracy(curves(dict.fromkeys(WAYS, 0.8)), tmp_path / "a.png", "a title")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_step_is_predicted_from_the_links():
    found = _predict(SpeedSettings(every=50), 0.2, {"bytes": 80e6, "meeting_s": 1.0, "waiting_s": 0.6})
    assert found == pytest.approx({"every step together": 0.8, "Local(50)": 0.22, "Local(50, outer)": 0.22})


def test_who_is_not_installed_takes_no_part_and_is_told(tmp_path):
    assert _missing("local", "") == ""
    (tmp_path / "torchft").mkdir()
    assert _missing("torchft-local", str(tmp_path)) == ""
    if importlib.util.find_spec("accelerate") is None:
        assert "give --peers" in _missing("accelerate", str(tmp_path))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="2 samples or more"):
        SpeedSettings(batch_size=1).check()
    for wrong in (AccuracySettings(seeds=1), AccuracySettings(steps=150), AccuracySettings(steps=0)):
        with pytest.raises(ConfigError, match="multiple of 200"):
            wrong.check()
