"""Real servers and workers come and go while others train in rounds: what `gradtide chaos --changes` runs."""

import sys

import pytest

from clock import at_most
from gradtide.chaos.membership_churn import Coming, run_comings
from gradtide.errors import ConfigError
from loaded_python import loaded_python


@pytest.mark.parametrize("replicas", [0, 1])
def test_servers_and_workers_come_and_go_and_every_sum_is_exact(forks, replicas, monkeypatch):
    monkeypatch.setattr(sys, "executable", loaded_python())
    report = run_comings(Coming(servers=2, workers=6, replicas=replicas), forks=forks)
    assert (report.servers, report.workers, report.lost, report.doubled) == (2, 6, 0, 0)
    assert report.steps > 10
    assert report.longest_s < at_most(10), "far above what a quiet machine shows"


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_twenty_changes_of_servers_and_a_hundred_of_workers_cost_a_step_and_half_a_second(replicas):
    report = run_comings(Coming(servers=20, workers=100, replicas=replicas))
    assert (report.servers, report.workers, report.lost, report.doubled) == (20, 100, 0, 0)
    assert report.longest_s < report.step_s + 0.5


def test_a_plan_that_can_not_be_is_refused():
    with pytest.raises(ConfigError, match="1 to 4 servers can't keep 1 replicas"):
        run_comings(Coming(begin_with=1, replicas=1))
