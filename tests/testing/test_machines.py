"""A store on four machines, with three members of etcd and two coordinators: what `gradtide chaos --machines` runs."""

import os
import shutil
import subprocess

import pytest

from gradtide.chaos.drill import Drill
from gradtide.chaos.machine_drill import MACHINE_KINDS, run_machine_chaos
from gradtide.errors import ConfigError


def may_make_networks() -> bool:
    return (
        bool(shutil.which("ip")) and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    )


needs_machines = pytest.mark.skipif(
    not may_make_networks() or not shutil.which("etcd"), reason="needs root, iproute2 and etcd (etcd-server)"
)


@needs_machines
@pytest.mark.slow
def test_a_machine_that_dies_with_the_leader_and_etcds_leader_loses_nothing():
    before = os.readlink("/proc/thread-self/ns/net")
    report = run_machine_chaos(Drill(faults=1, kinds=("machine",), workers=2, pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (1, 0, 0)
    assert report.pushes > 0
    assert report.longest_s["machine"] < 10, "about 6 s; what is promised is 10"
    assert os.readlink("/proc/thread-self/ns/net") == before


@needs_machines
@pytest.mark.slow
def test_a_hundred_rounds_on_four_machines_lose_and_double_nothing():
    report = run_machine_chaos(Drill(faults=100, kinds=MACHINE_KINDS, seed=17))
    assert (report.faults, report.lost, report.doubled) == (100, 0, 0)
    assert report.longest_s["machine"] < 10
    assert report.longest_s["coordinator"] < 1
    assert report.longest_s["etcd"] < 1


def test_an_unknown_fault_is_refused():
    with pytest.raises(ConfigError, match="unknown fault 'fire'; choose from server, coordinator, etcd, link, machine"):
        run_machine_chaos(Drill(kinds=("fire",)))
