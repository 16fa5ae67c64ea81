"""What planning costs is measured on the whole command."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from gradtide.bench.hosts.planning import PlanningCost, bench_planning, draw
from gradtide.cli.bench.app import bench
from gradtide.errors import ConfigError


def test_a_command_is_timed_as_a_whole_and_drawn(tmp_path):
    subprocess.run([sys.executable, "-c", "b'x' * 10**9"], check=True)  # what others took is not this command's
    (cost,) = bench_planning([1], "1GB", lambda _: None)
    assert cost.devices == 8
    assert 0 < cost.cpu_s < 60
    assert 10 < cost.peak_mb < 900
    assert 1 <= cost.ratio < 2
    draw([cost, PlanningCost(16, 1.0, 1.0, 50.0, 1.0)], tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000


def test_hosts_that_are_no_numbers_are_refused_in_one_line(tmp_path):
    done = CliRunner().invoke(bench, ["plan", "--hosts", "4,many", "--output", str(tmp_path / "plan.json")])
    assert isinstance(done.exception, ConfigError)
    assert "write numbers from 1 to 2048 with commas" in str(done.exception)
    assert not json.dumps(str(done.exception)).count("\\n")
