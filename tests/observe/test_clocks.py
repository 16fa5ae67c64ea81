"""Clocks of several hosts: compared, also with one that is really another, and aligned where events are merged."""

import queue
import random
import socket

import pytest
from other_time import ELSEWHERE_S, in_other_time
from test_run_trace import traced, write_worker
from trace_format import FlowStart

import gradtide
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.dashboard.sources import RunSource
from gradtide.events import BatchDone, ClockAligned
from gradtide.observe.clocks import Alignment, ClockComparison, aligned, own_clock
from gradtide.observe.event_log import EventLog, log_path, read_events
from gradtide.observe.meter import Timed
from gradtide.train.together.merge import merge


@pytest.mark.quick
def test_the_shortest_round_trip_wins_and_half_of_it_bounds_the_error():
    draw, true_s = random.Random(7), 123.456
    for _ in range(200):
        comparison, found, trips = ClockComparison(8, "here"), [], []
        for number in range(8):
            sent_s, there_s, back_s = 10.0 + number, draw.expovariate(1e3), draw.expovariate(1e3)  # ways are uneven
            trips.append(there_s + back_s)
            found.append(comparison.add("there", sent_s, sent_s + there_s + true_s, sent_s + there_s + back_s))
        assert found[1:7] == [None] * 6
        for event in (found[0], found[7]):
            assert abs(event.offset_s - true_s) <= event.error_s + 1e-9
        assert found[7].error_s == pytest.approx(min(trips) / 2)


@pytest.mark.quick
def test_a_clock_that_is_this_one_is_said_once_and_another_begins_anew():
    comparison = ClockComparison(4, "here")
    assert comparison.add("here", 1.0, 1.5, 2.0) == ClockAligned("here", "here", 0.0, 0.0)
    assert comparison.add("here", 2.0, 2.5, 3.0) is None
    assert comparison.add("there", 3.0, 13.5, 4.0) == ClockAligned("here", "there", 10.0, 0.5)


@pytest.mark.quick
def test_clocks_that_were_compared_with_a_third_are_aligned_and_drift_is_followed():
    logs = {
        "worker": [Timed(100 * n, ClockAligned("a", "b", 49.0 + n, 0.001)) for n in (1, 2)],
        "server": [Timed(7.0, ClockAligned("c", "b", 143.0, 0.002)), Timed(8.0, ClockAligned("c", "b", 99.0, 0.5))],
        "beside": [Timed(9.0, ClockAligned("c", "b", 143.0, 0.001))],
    }  # fmt: skip
    found = Alignment(logs)
    assert found.root == "a"
    assert found.of("worker")(150.0) == 150.0
    assert found.of("nobody")(150.0) == 150.0
    assert found.of("server")(7.0) == pytest.approx(100.0)  # 150 by b's, which is 100 by a's
    assert found.of("beside")(7.0) == found.of("server")(7.0), "two logs of one clock"
    assert found.of("server")(108.0) == pytest.approx(200.0)
    assert found.of("server")(57.5) == pytest.approx(150.0)
    assert found.errors == pytest.approx({"a": 0.0, "b": 0.001, "c": 0.003})


def tell_clock(folder, rank, event, at_s):
    """As the first line of a log."""
    path = log_path(folder, rank)
    first = EventLog(folder / "clock.jsonl", lambda: at_s)
    first.observe(event)
    first.close()
    path.write_bytes((folder / "clock.jsonl").read_bytes() + path.read_bytes())
    (folder / "clock.jsonl").unlink()


@pytest.fixture
def two_clocks(tmp_path):
    """Worker 1's is 1,000 s ahead, and it begins 10 ms after worker 0."""
    write_worker(tmp_path, 0, 3, 100.0)[0].close()
    write_worker(tmp_path, 1, 3, 1100.01)[0].close()
    tell_clock(tmp_path, 0, ClockAligned("a", "a", 0.0, 0.0), 99.0)
    tell_clock(tmp_path, 1, ClockAligned("b", "a", -1000.0, 0.001), 1099.0)
    return tmp_path


@pytest.mark.quick
def test_events_of_two_hosts_are_aligned_in_a_trace_in_metrics_and_on_the_dashboard(two_clocks):
    events, about = traced(two_clocks)
    assert about["arrows_left_out"] == 0
    assert about["clock_errors_s"] == {"a": 0.0, "b": 0.001}
    assert sum(isinstance(event, FlowStart) for event in events) == 6
    assert max(event.ts for event in events if hasattr(event, "ts")) < 4e6
    logs = {rank: list(read_events(log_path(two_clocks, rank))) for rank in range(2)}
    seconds = [line["seconds"] for line in merge("run", logs) if line["kind"] == "batch"]
    assert seconds == pytest.approx([0.91, 1.91, 2.91])
    source = RunSource(two_clocks)
    while source.poll():
        pass
    source.view.delta()
    spans = source.view.snapshot()["spans"]
    assert max(end for of_worker in spans.values() for _, _, end in of_worker) < 10


@pytest.mark.quick
def test_logs_that_tell_of_one_clock_stay_as_they_are():
    logs = {0: [Timed(1.0, ClockAligned("a", "a", 0.0, 0.0)), Timed(2.0, BatchDone(1, 1, 1, 0.5, None, 0.1))]}
    assert aligned(logs) is logs


# --- a clock that is really another ---


def check_offset(event, ahead_s):
    assert event.clock != event.reference
    assert abs(event.offset_s + ahead_s) <= event.error_s
    assert event.error_s < 0.5


def test_ranks_compare_their_clocks_over_their_lifeline():
    ours, theirs = socket.socketpair()

    def be_rank_1():
        ours.close()
        heard = queue.Queue()
        watch = RankWatch(1, {0: theirs}, lambda: None)
        watch.compare_clocks(heard.put)
        found = [heard.get(timeout=20) for _ in range(2)]
        for event in found:
            check_offset(event, ELSEWHERE_S)
        assert found[1].error_s <= found[0].error_s, "the best of some"
        watch.close(in_good_order=True)

    own = own_clock()  # which a process that is made by fork must not take for its own
    own_clock.cache_clear()
    with in_other_time(be_rank_1):
        theirs.close()
        told = []
        watch = RankWatch(0, {1: ours}, lambda: None)
        watch.compare_clocks(told.append)
    watch.close(in_good_order=True)
    assert told == [ClockAligned(own, own, 0.0, 0.0)]


def test_a_store_tells_its_workers_how_their_clocks_stand_to_its_coordinators(forks):
    with gradtide.local_servers(1, forks=forks) as servers:

        def be_a_client():
            heard = queue.Queue()
            with gradtide.connect(servers.address, emit=heard.put):
                check_offset(heard.get(timeout=20), ELSEWHERE_S)

        own_clock.cache_clear()
        with in_other_time(be_a_client):
            heard = queue.Queue()
            with gradtide.connect(servers.address, emit=heard.put):
                assert heard.get(timeout=20) == ClockAligned(own_clock(), own_clock(), 0.0, 0.0)
