"""Events as the page and Prometheus see them."""

import json
import shutil
import subprocess
import time

import pytest
from written_run import PLANNED, write_run, write_steps

from gradtide.dashboard.picture import topology_of
from gradtide.dashboard.run_view import RunView
from gradtide.dashboard.series import Series
from gradtide.dashboard.sources import RunSource
from gradtide.dashboard.worker_view import WorkerView
from gradtide.events import BatchStarted, GradientsReady, GradientsSynchronised, LocalWindow, ParametersUpdated
from gradtide.observe.event_log import LogReader, log_path
from gradtide.observe.figures import MetricFigures, render
from gradtide.observe.meter import Timed
from gradtide.observe.run_facts import RunFacts, note_end, write_facts

pytestmark = pytest.mark.quick


def polled(folder):
    source = RunSource(folder)
    source.poll()
    return source


def test_a_workers_time_links_and_staleness_are_what_its_events_say(tmp_path):
    log, _ = write_run(tmp_path, steps=6)
    log.close()
    view = polled(tmp_path).view
    (row,) = view.snapshot()["workers"]
    # The first event begins the clock, and the last batch's data time is not over.
    expected = {"compute": 3.0, "push": 0.6, "wait": 1.2, "update": 0.6, "data": 0.5, "evaluate": 0.0}
    assert row["seconds"] == pytest.approx(expected, abs=1e-6)
    assert (row["samples"], row["steps"], row["step"]) == (192, 6, 6)
    assert view.link_bytes() == {("worker 0", "server-0"): 2400, ("worker 0", "server-1"): 3600}
    assert view.staleness() == {0: 2, 1: 2, 2: 2}
    (compared,) = view.comparison()
    assert compared["predicted_s"] == PLANNED.predicted_s
    assert compared["measured_s"] == pytest.approx(0.3)


def test_what_is_new_is_told_once_and_a_latecomer_gets_all_of_it(tmp_path):
    log, clock = write_run(tmp_path, steps=3)
    source = polled(tmp_path)
    first = source.view.delta()
    assert first["workers"][0]["step"] == 3
    assert source.view.delta() == {}
    write_steps(log, clock, 4, 5)
    log.close()
    source.poll()
    second, whole = source.view.delta(), source.view.snapshot()
    assert first["spans"][0] + second["spans"][0] == whole["spans"][0]
    slots = first["series"]["rate"][: second["series"]["from"]] + second["series"]["rate"]
    assert slots == whole["series"]["rate"]
    assert slots == [32.0, None]  # a bin has four seconds, of steps of a second; the second has hardly begun
    assert [entry["text"] for entry in whole["happened"]] == ["gradients go by servers, bounded:2"]


def test_a_series_does_not_grow_and_loses_no_sample():
    series = Series()
    for second in range(20_000):
        series.add(second, 3, float("nan") if second % 7 == 0 else 2.0)
    whole = series.whole()
    assert len(whole["rate"]) <= 1024
    assert sum(whole["rate"][:-1]) * whole["slot_s"] == pytest.approx(60_000, rel=2e-3)  # the last is not over
    assert set(whole["loss"]) == {2.0}


@pytest.mark.parametrize(("step_s", "steps"), [(0.02, 60), (2.0, 60), (5.0, 730)])
def test_the_rate_of_an_even_run_is_even_however_long_its_steps_are_also_after_an_hour(step_s, steps):
    series = Series()
    for step in range(1, steps + 1):
        for late in (0.0, 0.3 * step_s):  # two workers
            series.add(step * step_s + late, 32, took_s=0.9 * step_s, step_s=step_s)
    whole = series.whole()
    assert whole["slot_s"] >= 3 * step_s
    rates = [rate for rate in whole["rate"] if rate is not None][1:-1]
    assert rates == [pytest.approx(64 / step_s, rel=0.15)] * len(rates)
    assert len(rates) >= 2


def test_news_of_a_series_make_the_whole_also_when_bins_get_longer():
    series, told, slot_s = Series(), [], None
    for step in range(1, 400):
        series.add(step * (0.1 if step < 50 else 3.0), 8, 1.0, took_s=0.1, step_s=0.1 if step < 50 else 3.0)
        if step % 7 == 0 or step == 399:
            news = series.delta()
            told = (told[: news["from"]] if news["slot_s"] == slot_s else []) + news["rate"]
            slot_s = news["slot_s"]
    assert series.delta() is None
    assert (told, slot_s) == (series.whole()["rate"], series.whole()["slot_s"])


def test_that_a_run_has_ended_is_told_once_and_forgotten_when_it_goes_on(tmp_path):
    write_run(tmp_path)[0].close()
    facts = RunFacts("a run", 1, 2, "unix:/nowhere")
    write_facts(tmp_path, facts)
    source = polled(tmp_path)
    assert source.view.delta()["ended"] is None
    note_end(tmp_path, 3)
    source.poll()
    at_s, code = source.view.delta()["ended"]
    assert (code, source.view.delta()) == (3, {})
    assert at_s == pytest.approx(time.time(), abs=60)
    write_facts(tmp_path, facts)
    source.poll()
    assert source.view.snapshot()["ended"] is None


def test_a_run_of_one_process_has_ended_with_its_totals(tmp_path):
    lines = [{"kind": "batch", "seconds": 1.0, "loss": 2.0}, {"kind": "summary", "samples": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert polled(tmp_path).view.snapshot()["ended"] == (None, 0)


def test_a_worker_is_kept_in_a_size_that_does_not_grow(tmp_path):
    log, _ = write_run(tmp_path, steps=300)
    log.close()
    worker = WorkerView(0)
    for timed in LogReader(log_path(tmp_path, 0)).read():
        worker.note(timed)
        worker.take_spans()
    assert len(worker.kept_spans) == 240
    assert worker.steps == 300


def test_a_window_of_local_steps_is_as_stale_as_the_updates_that_came_between():
    worker = WorkerView(0)
    window = LocalWindow(4, 4.0, [[7, 1, 10], [9, 1, 3], [11, 1, 5]], [[7, 1, 11], [9, 1, 7], [11, 2, 99]])
    worker.note(Timed(0.0, window))
    assert worker.staleness == {3: 1}


def test_a_file_of_a_long_run_is_read_in_pieces(tmp_path):
    log, _ = write_run(tmp_path, steps=50)
    log.close()
    reader, found = LogReader(log_path(tmp_path, 0)), []
    while events := reader.read(2000):
        assert len(events) < 100
        found += events
    assert found == LogReader(log_path(tmp_path, 0)).read()


def test_servers_and_workers_become_a_topology_with_wires_both_ways():
    topology = topology_of(
        {("worker 0", "server-0"): 5.0, ("server-0", "worker 0"): 1.0, ("worker 1", "server-0"): 2.0}
    )
    assert {node.name: str(node.kind) for node in topology.nodes} == {
        "server-0": "host",
        "worker 0": "device",
        "worker 1": "device",
    }
    assert len(topology.links) == 4


def test_prometheus_reads_the_totals_that_the_page_shows(tmp_path):
    log, _ = write_run(tmp_path, steps=6)
    log.close()
    view, figures = polled(tmp_path).view, MetricFigures()
    view.add_figures(figures)
    figures.failures, figures.lag = {"server": 2}, {("server-0", "server-1"): 3}
    text = render(figures).decode()
    for line in (
        'gradtide_samples_total{rank="0"} 192.0',
        'gradtide_link_bytes_total{dst="server-1",src="worker 0"} 3600.0',
        'gradtide_staleness_rounds_bucket{le="1"} 4.0',
        "gradtide_staleness_rounds_count 6.0",
        'gradtide_failures_total{role="server"} 2.0',
        'gradtide_replica_lag_entries{replica="server-1",server="server-0"} 3.0',
        'gradtide_predicted_seconds{what="synchronise"} 0.002',
    ):
        assert line in text.splitlines()
    seconds = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if "phase_seconds_total{" in line}
    assert seconds['gradtide_phase_seconds_total{phase="wait",rank="0"}'] == pytest.approx(1.2)
    assert 'gradtide_build_info{version="' in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; apt-get install prometheus")
def test_promtool_finds_nothing_wrong(tmp_path):
    log, _ = write_run(tmp_path, steps=6)
    log.close()
    figures = MetricFigures(lag={("a", "b"): 1}, failures={"server": 1}, members={"server": 2}, store_bytes={"a": 5})
    figures.short_shards, figures.complaints = 3, 1
    polled(tmp_path).view.add_figures(figures)
    checked = subprocess.run(["promtool", "check", "metrics"], input=render(figures), capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_a_loop_of_ones_own_has_steps_and_seconds_and_samples_that_nobody_knows():
    view, figures = RunView("own"), MetricFigures()
    events = [BatchStarted(), GradientsReady(), GradientsSynchronised(8), ParametersUpdated()] * 3
    view.note(0, [Timed(float(i), event) for i, event in enumerate(events)], 0.0)
    view.add_figures(figures)
    (row,) = view.snapshot()["workers"]
    assert (row["steps"], row["samples"], figures.samples) == (3, None, {})
    assert row["seconds"] == {"compute": 3.0, "push": 3.0, "wait": 0, "update": 3.0, "data": 2.0, "evaluate": 0}
    series = view.snapshot()["series"]
    assert (series["unit"], series["rate"]) == ("steps/s", [round(2 / 7, 2)])  # the third is not over yet


def test_a_run_that_nobody_has_told_anything_of_is_empty():
    view = RunView("nothing")
    assert view.delta() == {}
    assert view.snapshot()["workers"] == []
