import pytest

from gradtide.bench.launch import bench_launch
from gradtide.bench.report import content
from gradtide.errors import ConfigError

pytestmark = pytest.mark.quick


@pytest.mark.slow
def test_every_launcher_is_measured_and_rated_against_torchrun():
    figures = bench_launch(2, 1, lambda text: None)
    assert figures[0].name == "torchrun, Gloo group"
    for figure in figures:
        assert 0 < figure.seconds_min <= figure.seconds <= figure.seconds_max
        assert (figure.added is None) == figure.name.startswith("Ray")
        assert figure.added is None or figure.seconds <= figure.added
        assert figure.ratio == pytest.approx(figures[0].seconds / figure.seconds)
    assert len(content(figures, {})["results"]) == len(figures) >= 5


def test_a_benchmark_without_rounds_is_refused():
    with pytest.raises(ConfigError, match="1 round"):
        bench_launch(2, 0, lambda text: None)
