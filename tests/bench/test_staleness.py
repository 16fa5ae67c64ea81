import pytest

from gradtide.bench import staleness
from gradtide.bench.staleness import StalenessResult, draw, keep, table
from gradtide.train.datasets.fashion_mnist import DEBIAN

CURVE = [(0.0, 0.1), (1.0, 0.7), (2.0, 0.81), (3.0, 0.79), (4.0, 0.82)]


def test_the_goal_is_reached_when_it_is_first_reached():
    assert StalenessResult("bsp", "calm", 0, CURVE).goal_s == 2.0
    assert StalenessResult("bsp", "calm", 0, CURVE[:2]).goal_s is None


def test_results_of_other_runs_are_kept_and_means_are_over_those_that_got_there(tmp_path):
    path = tmp_path / "found.json"
    keep(path, StalenessResult("async", "slow", 0, CURVE))
    keep(path, StalenessResult("async", "slow", 1, CURVE))
    later = [(2 * seconds, accuracy) for seconds, accuracy in CURVE]
    keep(path, StalenessResult("async", "slow", 1, later))
    found = keep(path, StalenessResult("async", "slow", 2, CURVE[:2]))
    (line,) = [line for line in table(found) if (line["weather"], line["mode"]) == ("slow", "async")]
    assert line == {
        "weather": "slow",
        "mode": "async",
        "runs": 3,
        "reached": 2,
        "mean_s": 3.0,
        "min_s": 2.0,
        "max_s": 4.0,
    }
    draw(found, tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not DEBIAN.exists(), reason="needs Fashion-MNIST: apt-get install dataset-fashion-mnist")
@pytest.mark.slow
def test_a_run_gives_accuracy_over_time():
    curve = staleness._run("async", "slow", 0, 11, str(DEBIAN))
    assert len(curve) == 3
    assert curve[0][0] < curve[1][0] < curve[2][0]
    assert all(0 < accuracy < 1 for _, accuracy in curve)
