"""Real processes under fire: what `gradtide chaos` runs."""

import os
import shutil
import subprocess
import sys

import pytest

from gradtide.errors import ConfigError
from gradtide.store.forkserver import Alive
from gradtide.store.messages import ServerEntry, Table
from gradtide.testing.chaos import Plan, run_chaos, victims


def test_ten_kills_lose_and_double_nothing():
    report = run_chaos(Plan(faults=10, kinds=("kill",), pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (10, 0, 0)
    assert report.pushes > 100
    assert report.replicated > 0
    assert report.quantile(0.5) < 1.0, "far above what a quiet machine shows, for this one may be busy"


def test_servers_that_are_stopped_and_coordinators_that_are_killed_cost_nothing_either():
    report = run_chaos(Plan(faults=4, kinds=("stop", "coordinator"), seed=3, workers=2, pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (4, 0, 0)


def may_make_networks() -> bool:
    return (
        bool(shutil.which("ip")) and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not may_make_networks(), reason="needs root, and iproute2")
def test_servers_that_are_cut_off_are_replaced_and_nothing_stale_counts_when_they_are_back():
    before = os.readlink("/proc/thread-self/ns/net")
    report = run_chaos(Plan(faults=3, kinds=("cut",), workers=2, pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (3, 0, 0)
    assert report.pushes > 0
    assert report.quantile(0.5) < 5.0, "2.5 s on a quiet machine; this one may be busy"
    assert os.readlink("/proc/thread-self/ns/net") == before


def test_kills_do_not_go_with_cuts():
    with pytest.raises(ConfigError, match="only stop goes with cut"):
        run_chaos(Plan(kinds=("cut", "kill")))


def test_a_server_that_holds_nothing_is_no_victim_because_nobody_would_notice():
    entries = tuple(ServerEntry(f"server-{i}", f"unix:/{i}", 1) for i in range(3))
    table = Table(1, 1, entries, (0, 2), 1, ((2,), (0,)), ((), ()), (0, 0))
    there = [Alive("coordinator", "coordinator", 1), *(Alive("server", entry.name, 2) for entry in entries)]
    assert [process.name for process in victims("stop", there, table)] == ["server-0", "server-2"]
    assert [process.name for process in victims("coordinator", there, table)] == ["coordinator"]


def test_a_script_of_ones_own_can_be_disturbed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, gradtide\n"
        "with gradtide.connect(sys.argv[1]) as store:\n"
        "    store.init('w', torch.zeros(3), update=gradtide.update('add'))\n"
        "    for step in range(3000):\n"
        "        store.push('w', torch.ones(3)).wait()\n"
        "    assert store.pull('w').tolist() == [3000.0] * 3\n"
    )
    report = run_chaos(Plan(faults=2, workers=0, pause_s=0.1, script=(sys.executable, str(script), "{address}")))
    assert report.faults >= 1


def test_an_unknown_fault_is_named():
    with pytest.raises(ConfigError, match="'flood'"):
        run_chaos(Plan(kinds=("flood",)))
