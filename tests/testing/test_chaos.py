"""Real processes under fire: what `gradtide chaos` runs."""

import sys

import pytest

from gradtide.errors import ConfigError
from gradtide.testing.chaos import Plan, run_chaos


def test_ten_kills_lose_and_double_nothing():
    report = run_chaos(Plan(faults=10, kinds=("kill",), pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (10, 0, 0)
    assert report.pushes > 100
    assert report.replicated > 0
    assert report.quantile(0.5) < 1.0, "far above what a quiet machine shows, for this one may be busy"


# Slow until the reason is found: beside other work, a server stopped right after the coordinator had come back was
# sometimes not noticed within 30 s (docs/reliability.md).
@pytest.mark.slow
def test_servers_that_are_stopped_and_coordinators_that_are_killed_cost_nothing_either():
    report = run_chaos(Plan(faults=4, kinds=("stop", "coordinator"), seed=3, workers=2, pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (4, 0, 0)


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
