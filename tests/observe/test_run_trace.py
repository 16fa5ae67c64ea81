"""A run's events as a trace: what it shows, its size, and that viewers can read it."""

import itertools
import json

import pytest
from trace_format import Complete, Counter, FlowEnd, FlowStart, Instant, Metadata, check_trace

from gradtide.errors import DataError
from gradtide.events import (
    BatchDone,
    BatchStarted,
    CheckpointTaken,
    EpochDone,
    GradientsReady,
    GradientsSynchronised,
    LinksPlanned,
    ParametersUpdated,
    TaskDone,
    ValuesPulled,
    Waiting,
)
from gradtide.observe.event_log import EventLog, log_path
from gradtide.observe.trace import make_trace, write_trace
from gradtide.observe.trace.folder import find_logs
from gradtide.observe.trace.keeping import keep_steps

pytestmark = pytest.mark.quick


class WrittenClock:
    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def write_worker(folder, rank, steps, began_s=100.0, loss=0.5, size=2, done=True):
    """Each step takes a second. All send to all, as shared parameters do."""
    clock = WrittenClock(began_s)
    log = EventLog(log_path(folder, rank), clock)
    loads = [[f"worker {rank}", f"worker {to}", 70] for to in range(size) if to != rank]
    for step in range(1, steps + 1):
        for seconds, event in (
            (0.0, BatchStarted()), (0.5, GradientsReady()), (0.1, Waiting()),
            *([(0.2, LinksPlanned("shared parameters", loads))] if step == 1 else [(0.2, ValuesPulled(step, 1))]),
            (0.0, GradientsSynchronised(70)), (0.1, ParametersUpdated()),
            *([(0.0, BatchDone(1, step, 10, loss, 1, 0.1))] if done else []),
        ):  # fmt: skip
            clock.now_s += seconds
            log.observe(event)
        clock.now_s += 0.1
    return log, clock


def traced(folder, **options):
    found = make_trace(find_logs(folder), "a run", **options)
    return check_trace(json.dumps(found)), found["otherData"]


def test_a_worker_is_a_process_with_its_steps_phases_and_figures_on_one_clock(tmp_path):
    for rank in range(2):
        write_worker(tmp_path, rank, 2, 100.0 + rank / 100)[0].close()
    events, about = traced(tmp_path)
    names = {event.pid: event.args.name for event in events if getattr(event, "name", "") == "process_name"}
    assert names == {1: "worker 0", 2: "worker 1"}
    of_first = [(e.name, e.ts, e.dur) for e in events if isinstance(e, Complete) and e.pid == 1]
    assert of_first[:5] == [
        ("step 1", 0, 900_000), ("compute", 0, 500_000), ("push", 500_000, 100_000), ("wait", 600_000, 200_000),
        ("update", 800_000, 100_000),
    ]  # fmt: skip
    assert of_first[5] == ("data", 900_000, 100_000)
    assert min(event.ts for event in events if isinstance(event, Complete) and event.pid == 2) == 10_000
    assert [(c.name, c.args) for c in events if isinstance(c, Counter) and c.pid == 1] == [
        ("staleness", {"in rounds": 1}),
        ("samples", {"per second": 10}),
    ]
    assert about["kept"] == "all steps, 1 to 2"


def test_arrows_go_from_who_sends_to_who_then_has_all(tmp_path):
    for rank in range(3):
        write_worker(tmp_path, rank, 4, 100.0 + rank / 100, size=3)[0].close()
    events, about = traced(tmp_path)
    arrows = [event for event in events if isinstance(event, FlowStart)]
    assert len(arrows) == 4 * 3 * 2
    assert {event.name for event in arrows} == {"70 bytes"}
    assert about["arrows_left_out"] == 0


def test_an_arrow_that_would_go_back_in_time_is_left_out_and_counted(tmp_path):
    write_worker(tmp_path, 0, 1, 100.0)[0].close()
    write_worker(tmp_path, 1, 1, 200.0)[0].close()  # its clock is another
    events, about = traced(tmp_path)
    assert sum(isinstance(event, FlowStart) for event in events) == 1
    assert about["arrows_left_out"] == 1


def test_what_has_happened_is_marked_in_words_and_tasks_have_tracks_of_their_own(tmp_path):
    log, clock = write_worker(tmp_path, 0, 1, loss=float("nan"))
    log.observe(BatchStarted())
    log.observe(TaskDone(3, "forward", 0, 1, clock.now_s, clock.now_s + 0.25, 0.125))
    log.observe(TaskDone(3, "message", 0, 1, clock.now_s + 0.25, clock.now_s + 0.5, 0.0, 7))
    log.observe(TaskDone(4, "forward", 1, 1, clock.now_s + 0.125, clock.now_s + 0.75, 0.25, -1, [7]))
    clock.now_s += 1
    log.observe(CheckpointTaken(1, "there", 2_000_000, 0.5))
    log.observe(EpochDone(1, 0.1, 0.75))
    log.close()
    events, _ = traced(tmp_path)
    marks = {event.name: event.cat for event in events if isinstance(event, Instant)}
    assert marks["checkpoint at step 1, 2.0 MB in 0.5 s"] == "good"
    assert marks["epoch 1 done, test accuracy 0.750"] == "plain"
    tasks = [event for event in events if isinstance(event, Complete) and event.cat == "task"]
    durations = [("forward", 250_000), ("wait", 250_000), ("message", 250_000), ("forward", 375_000)]
    assert [(task.name, task.dur) for task in tasks] == durations
    (start,), (end,) = ([e for e in events if isinstance(e, kind)] for kind in (FlowStart, FlowEnd))
    assert (start.tid, end.tid, end.ts - start.ts) == (103, 104, 125_000)
    tracks = [e.args.name for e in events if isinstance(e, Metadata) and e.name == "thread_name"]
    assert tracks == ["steps", "tasks of device 3", "tasks of device 4"]


def test_a_loop_of_ones_own_has_steps_too(tmp_path):
    write_worker(tmp_path, 0, 3, done=False)[0].close()
    events, about = traced(tmp_path)
    assert [e.name for e in events if isinstance(e, Complete) and e.cat == "step"] == ["step 1", "step 2", "step 3"]
    assert about["kept"] == "all steps, 1 to 3"


@pytest.mark.parametrize("most", [600, 2000])
def test_a_long_run_keeps_its_first_and_last_steps_and_every_kth_between(tmp_path, most):
    for rank in range(2):
        write_worker(tmp_path, rank, 500)[0].close()
    about = write_trace(tmp_path / "trace.json", tmp_path, "long", most)
    events = check_trace((tmp_path / "trace.json").read_bytes())
    assert most / 3 < len(events) <= most
    steps = [int(e.name.split()[1]) for e in events if isinstance(e, Complete) and e.cat == "step" and e.pid == 1]
    assert (steps[0], steps[-1]) == (1, 500)
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert max(gaps) < 500 / 3, "there are some in between"
    assert "and one of" in about["kept"]
    assert about["events"] == len(events)


@pytest.mark.parametrize(("first", "last", "most"), [(1, 10, 10), (1, 1000, 16), (301, 100_000, 999), (5, 5, 1)])
def test_no_more_steps_are_kept_than_asked_for(first, last, most):
    kept = keep_steps(first, last, most)
    found = [step for step in range(first, last + 1) if step in kept]
    assert len(found) <= most + 1
    assert {first, last} <= {*found}


def test_the_command_says_what_is_in_the_file_or_what_is_missing(tmp_path, capfd, monkeypatch):
    from gradtide.cli import main

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["gradtide", "trace", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code, capfd.readouterr()

    code, said = run(tmp_path)
    assert code == 2
    assert "has no worker-0.jsonl" in said.err
    write_worker(tmp_path, 0, 2)[0].close()
    code, said = run(tmp_path, "--output", tmp_path / "other.json")
    assert code == 0, said.err
    assert "all steps, 1 to 2; open it at ui.perfetto.dev" in said.out
    check_trace((tmp_path / "other.json").read_bytes())
    assert run(tmp_path, "--most-events", 0)[0] == 2
    write_worker(tmp_path, 1, 1, 200.0)[0].close()  # its clock is another
    assert ", without 1 arrow that would go back in time; open it" in run(tmp_path)[1].out


@pytest.mark.parametrize(
    "line",
    [
        '{"at_s": "x", "event": "BatchStarted"}',
        '{"at_s": 1.0, "event": "BatchDone"}',
        '{"at_s": 1.0, "event": "BatchDone", "step": "x"}',
        '{"at_s": 1.0, "event": "BatchDone" cut',
        '{"at_s": 1.0, "event": "ClockAligned"}',
    ],
)
def test_a_line_that_no_worker_wrote_is_refused_and_its_file_named(tmp_path, line):
    (tmp_path / "worker-0.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"worker-0\.jsonl is not what gradtide writes"):
        write_trace(tmp_path / "trace.json", tmp_path, "wrong")


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "worker-0.jsonl").mkdir()
    with pytest.raises(DataError, match=r"can't read .*worker-0\.jsonl: Is a directory"):
        write_trace(tmp_path / "trace.json", tmp_path, "wrong")
