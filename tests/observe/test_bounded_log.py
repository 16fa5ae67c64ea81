"""What a process writes that runs for months: files that don't grow with it, and hold what a trace needs."""

import itertools

import pytest

from gradtide.events import ClockAligned, PushAnswered, PushTaken
from gradtide.observe.bounded_log import BoundedLog, bounded_path, read_bounded

pytestmark = pytest.mark.quick


def write(folder, rounds, most):
    times = itertools.count()
    log = BoundedLog(bounded_path(folder, "server-0"), lambda: float(next(times)), most)
    for number in range(1, rounds + 1):
        log.observe(PushTaken(0, 7 * number, number, 100))
        log.observe(PushAnswered(0, 7 * number, number))
    log.close()
    return [timed.event.round for timed in read_bounded(bounded_path(folder, "server-0"))]


def test_a_short_run_is_kept_whole_in_one_file(tmp_path):
    assert write(tmp_path, 40, 100) == [number for number in range(1, 41) for _ in range(2)]
    assert len([*tmp_path.iterdir()]) == 1


def test_of_a_long_run_the_first_and_last_rounds_stay_and_ever_fewer_between(tmp_path):
    rounds, most = 20_000, 100
    found = write(tmp_path, rounds, most)
    assert found == sorted(found)
    assert all(count == 2 for count in map(found.count, {*found}) if count), "of a round all or nothing"
    kept = sorted({*found})
    assert kept[: most // 2] == list(range(1, most // 2 + 1))
    assert kept[-most // 2 :] == list(range(rounds - most // 2 + 1, rounds + 1))
    assert len(found) < most * 12
    between = [number for number in kept if most < number < rounds - 2 * most]
    assert len(between) > most // 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 200_000


def test_one_that_comes_again_adds_to_what_is_there(tmp_path):
    for life in range(2):
        times = itertools.count(1000 * life)
        log = BoundedLog(bounded_path(tmp_path, "server-0"), lambda times=times: float(next(times)), 10)
        for number in range(1, 20):
            log.observe(ClockAligned("a", "b", 0.5, 0.1) if number % 10 == 0 else PushAnswered(0, 1, number))
        if life == 0:
            log.close()
    log.flush()
    events = [*read_bounded(bounded_path(tmp_path, "server-0"))]
    log.close()
    assert [timed.at_s for timed in events] == sorted(timed.at_s for timed in events)
    assert sum(timed.at_s >= 1000 for timed in events) == 19
    assert sum(isinstance(timed.event, ClockAligned) for timed in events) == 2


def test_what_has_no_number_does_not_make_files_grow_either(tmp_path):
    times = itertools.count()
    log = BoundedLog(bounded_path(tmp_path, "server-0"), lambda: float(next(times)), 100)
    for _ in range(5_000):
        log.observe(ClockAligned("a", "b", 0.5, 0.1))
    log.close()
    found = [timed.at_s for timed in read_bounded(bounded_path(tmp_path, "server-0"))]
    assert found[:100] == list(range(100))
    assert found[-1] == 4_999
    assert len(found) <= 300
