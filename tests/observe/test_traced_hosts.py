"""Runs on two hosts whose clocks are 1,000 s apart: network namespaces, and a time namespace for one of them."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import ExitStack, contextmanager

import pytest
from test_traced_runs import arrows
from trace_format import check_trace

from gradtide.errors import ConfigError
from gradtide.observe.trace import write_trace
from gradtide.testing.hosts import ADDRESSES, two_hosts

pytestmark = pytest.mark.slow

LATER = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000"]
SCRIPT = """
    import sys, torch, gradtide
    from gradtide.train.digits import load_digits
    from gradtide.train.models import build_model

    sync = gradtide.Servers("bsp", address=sys.argv[1], secret_file=sys.argv[2]) if sys.argv[1:] else "ring"
    data, tests = load_digits()
    gradtide.fit(build_model("lenet", 0), data, batch_size=256, lr=0.05, epochs=1, sync=sync, progress=False)
"""
STEPS = 6


@pytest.fixture
def hosts():
    """What to put before a command to run it on each."""
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run([*LATER, "true"], check=False).returncode:
        pytest.skip("time namespaces need root, Linux 5.6 and unshare")
    try:
        with two_hosts(rate="") as (one, other):
            yield one, [*other, *LATER]
    except ConfigError as error:
        pytest.skip(str(error))


@contextmanager
def running(command, folder, **variables):
    process = subprocess.Popen(
        command, env={**os.environ, "GRADTIDE_EVENTS": str(folder), **variables}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def train(folder, places, *arguments):
    """A worker at each place."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with ExitStack() as stack:
        workers = []
        for rank, place in enumerate(places):
            known = {"RANK": str(rank), "WORLD_SIZE": str(len(places)), "MASTER_ADDR": ADDRESSES[0]}
            known |= {"MASTER_PORT": "29711", "OMP_NUM_THREADS": "1"}
            command = [*place, sys.executable, str(script), *map(str, arguments)]
            workers.append(stack.enter_context(running(command, folder, **known)))
        assert [worker.wait(120) for worker in workers] == [0] * len(places)


def check(folder):
    about = write_trace(folder / "trace.json", folder, "two hosts")
    events = check_trace((folder / "trace.json").read_bytes())
    assert about["arrows_left_out"] == 0
    assert len(about["clock_errors_s"]) == 2
    assert max(about["clock_errors_s"].values()) < 0.05
    assert max(event.ts for event in events if hasattr(event, "ts")) < 120e6, "all of it is of one time"
    return arrows(events)


def test_workers_on_two_hosts_point_at_each_other_and_never_back_in_time(hosts, tmp_path):
    train(tmp_path, hosts)
    times = [json.loads((tmp_path / f"worker-{rank}.jsonl").read_text().split("\n")[0])["at_s"] for rank in range(2)]
    assert times[1] - times[0] > 900
    found = check(tmp_path)
    assert sum(found.values()) == 2 * STEPS


def test_arrows_to_servers_on_another_host_and_back_never_go_back_in_time(hosts, tmp_path):
    here, there = hosts
    secret, gradtide = tmp_path / "job.secret", [sys.executable, "-m", "gradtide"]
    subprocess.run([*gradtide, "secret", str(secret)], check=True, capture_output=True)
    known = ["--secret-file", str(secret)]
    address = f"tcp:{ADDRESSES[0]}:4711"
    with ExitStack() as stack:
        coordinator = [*here, *gradtide, "coordinator", address, *known]
        assert "listens" in stack.enter_context(running(coordinator, tmp_path)).stdout.readline()
        serve = [*there, *gradtide, "serve", f"tcp:{ADDRESSES[1]}:4712", "--coordinator", address, "--name", "far"]
        assert "listens" in stack.enter_context(running([*serve, *known], tmp_path)).stdout.readline()
        train(tmp_path, [here, here], address, secret)
        found = check(tmp_path)
    assert found[("push", "worker 0", "far")] >= STEPS
    assert found[("pull", "far", "worker 1")] >= STEPS
    assert found[("round closed", "far", "worker 1")] >= STEPS
