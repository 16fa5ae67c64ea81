import json
import sys

import pytest

from gradtide.bench.allreduce import OURS, bench_allreduce
from gradtide.bench.report import content
from gradtide.errors import ConfigError
from loaded_python import loaded_python


def test_every_contender_is_measured_at_every_size_and_rated_against_the_fastest_peer(monkeypatch):
    monkeypatch.setattr("gradtide.bench.allreduce._TURN_S", 0.02)  # both ranks compute as long as a turn lasts
    monkeypatch.setattr(sys, "executable", loaded_python())
    figures = bench_allreduce(2, [4096, 300_000], 2, [], lambda text: None)
    assert {(f.size_bytes, f.name) for f in figures} == {(s, n) for s in (4096, 300_000) for n in (*OURS, "Gloo")}
    for figure in figures:
        assert 0 < figure.seconds_min <= figure.seconds <= figure.seconds_max
        gloo = next(f for f in figures if f.size_bytes == figure.size_bytes and f.name == "Gloo")
        assert figure.ratio == pytest.approx(gloo.seconds / figure.seconds)
    found = json.loads(json.dumps(content(figures, {"settings": {"ranks": 2}})))
    assert found["machine"]["packages"]["torch"]
    assert len(found["results"]) == 8


def test_a_benchmark_of_one_rank_is_refused():
    with pytest.raises(ConfigError, match="2 ranks or more"):
        bench_allreduce(1, [4096], 1, [], lambda text: None)
