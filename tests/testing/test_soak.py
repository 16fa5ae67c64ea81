"""Long runs, made short: what they look at, and that they tell what they are for."""

import os
import subprocess
import sys

import pytest

from gradtide.chaos.footprint import descendants, footprint, still_there
from gradtide.chaos.soak import Growth, Soak, _Watch, run_overload, run_soak
from gradtide.errors import ConfigError

pytestmark = pytest.mark.quick

MB = 1 << 20


def test_a_process_that_takes_memory_and_descriptors_is_seen_to_grow():
    program = (
        "import sys; kept = []\n"
        "for line in sys.stdin: kept += [bytearray(20 << 20), open('/dev/null')]; print('more', flush=True)\n"
    )
    watch = _Watch()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for minute in range(6):
            watch.look(minute * 60.0, {"greedy": process.pid})
            print("on", file=process.stdin, flush=True)
            process.stdout.readline()
        (growth,) = watch.growths(360.0)
        assert growth.grown_bytes >= 3 * 20 * MB
        assert growth.end_descriptors > growth.third_descriptors
        assert not growth.is_steady
        assert [pid for pid, _ in still_there(watch.known)] == [process.pid]
        process.stdin.close()
    assert watch.orphans() == set()


def test_who_lives_is_told_from_who_has_the_same_number():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (known,) = {known for known in descendants(os.getpid()) if known[0] == child.pid}
    assert still_there({known, (child.pid, "another time")}) == {known}
    child.communicate()
    assert still_there({known}) == set()
    assert footprint(os.getpid()).memory_bytes > MB


@pytest.mark.parametrize(
    ("end_bytes", "descriptors", "orphans", "said"),
    [
        (115 * MB, 10, 0, []),
        (116 * MB, 10, 0, ["server-0 grew"]),
        (100 * MB, 11, 0, ["server-0 grew"]),
        (90 * MB, 9, 2, ["2 processes were left"]),
    ],
)
def test_a_soak_complains_about_growth_and_about_who_is_left(end_bytes, descriptors, orphans, said):
    growth = Growth("server-0", 100 * MB, end_bytes, 10, descriptors)
    assert Soak(30, 90, 1000, (growth,), orphans).complaints() == said


@pytest.mark.slow
def test_a_soak_of_a_few_kills_trains_on_and_leaves_nobody():
    soak = run_soak(0.2, every_s=2.0)
    assert soak.kills >= 4
    assert soak.steps > 20
    assert {growth.name for growth in soak.growths} == {"coordinator", "server-0", "worker 0", "worker 1"}
    assert soak.orphans == 0


@pytest.mark.slow
def test_on_an_overloaded_machine_nobody_is_taken_for_dead():
    found = run_overload(0.1)
    assert found.busy >= 3
    assert found.steps > 0
    assert (found.servers_evicted, found.workers_evicted) == (0, 0)


def test_a_soak_that_is_too_short_to_tell_is_refused():
    with pytest.raises(ConfigError, match="too few kills"):
        run_soak(0.1, every_s=20.0)
