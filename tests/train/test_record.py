import json

import pytest

from gradtide.errors import OutputError
from gradtide.events import (
    BatchDone,
    BatchStarted,
    EpochDone,
    GradientsReady,
    GradientsSynchronised,
    ParametersUpdated,
)
from gradtide.observe.meter import Meter
from gradtide.train.record import RunFolder, draw_curve, read_metrics
from gradtide.train.steering.rates import Rates

pytestmark = pytest.mark.quick

BATCH = BatchDone(epoch=1, step=1, samples=10, loss=0.5, correct=4, lr=0.1)


def test_the_meter_gives_each_stretch_of_time_to_what_it_was_spent_on():
    times = iter([100.0, 101.0, 103.0, 103.5, 103.5, 110.0, 112.0])
    meter = Meter(clock=lambda: next(times))
    events = [BatchStarted(), GradientsReady(), GradientsSynchronised(70), ParametersUpdated(), BATCH]
    for event in (*events, EpochDone(1, 0.3, 0.8), BatchStarted()):
        meter.observe(event)
    totals = meter.totals
    assert (totals.compute_s, totals.sync_s, totals.update_s, totals.data_s) == (1.0, 2.0, 0.5, 2.0)
    assert (totals.samples, totals.wire_bytes, totals.test_accuracy) == (10, 70, 0.8)
    assert totals.samples_per_s == 10 / 5.5
    assert totals.as_dict()["train_s"] == 5.5


def test_metrics_are_on_disk_line_by_line_and_the_folder_is_made_with_the_first(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    observe = folder.observer("2 devices")
    assert not (tmp_path / "a").exists()
    observe(BATCH)
    assert read_metrics(folder.metrics)[0]["accuracy"] == 0.4  # readable before the run is over
    observe(EpochDone(1, 0.3, 0.8))
    folder.summary("2 devices", {"samples": 10})
    folder.close()
    assert [line["kind"] for line in read_metrics(folder.metrics)] == ["batch", "epoch", "summary"]
    with pytest.raises(OutputError, match="is there already; choose another --name"):
        RunFolder(tmp_path / "a" / "b")


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"run": "a"}) + '\n{"run": "b')
    assert read_metrics(path) == [{"run": "a"}]


def test_a_place_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is not a folder that you may write"):
        RunFolder(tmp_path / "file" / "run")
    with pytest.raises(OutputError, match="/proc"):
        RunFolder(tmp_path.__class__("/proc/runs/x")).observer("a")(BATCH)


def test_the_curve_is_drawn(tmp_path):
    lines = [
        {"run": run, "kind": "batch", "seconds": i, "loss": 1 / (i + 1)}
        for run in ("1 device", "2 devices")
        for i in range(9)
    ] + [{"run": "2 devices", "kind": "epoch", "seconds": 8, "test_accuracy": 0.5}]
    draw_curve(lines, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


def test_rates_scale_with_the_growth_of_the_batch():
    assert [Rates(scaling, growth=4).full for scaling in ("none", "sqrt", "linear")] == [1, 2, 4]
    warming = Rates("linear", 4, warmup_epochs=2)
    assert warming.at(0) == pytest.approx(0.04)
    assert warming.at(1) == pytest.approx(2.02)
    assert warming.at(2) == warming.at(9) == 4
