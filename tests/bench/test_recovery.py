"""bench recovery: what it starts is gone when it ends, even what hangs."""

import os
import signal
import subprocess
import sys

import pytest

from gradtide.bench.peers.recovery_rivals import Torchrun, end_all, processes_of
from gradtide.bench.recovery import Ours, bench_recovery
from gradtide.errors import ConfigError
from loaded_python import loaded_python

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    subprocess.Popen([sys.executable, "-c", sys.stdin.read(), sys.argv[1], "child"], start_new_session=True)
print("here", flush=True)
time.sleep(600)
"""


def test_what_ignores_a_request_and_what_it_started_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("gradtide.bench.peers.recovery_rivals._END_S", 0.5)
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", STUBBORN, str(tmp_path)], stdin=pipe, stdout=pipe, text=True)
    parent.stdin.write(STUBBORN)
    parent.stdin.close()
    assert [parent.stdout.readline() for _ in range(2)] == ["here\n"] * 2
    assert len(processes_of(tmp_path)) == 2
    end_all(tmp_path, [parent])
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_torchrun_that_hangs_leaves_no_rank_behind(tmp_path):
    folder = tmp_path / "torchrun"
    with Torchrun(folder) as torchrun:
        assert 0.0 < torchrun.kill() <= 30.0
        started = processes_of(folder)
        assert len(started) == 3, "torchrun and its two ranks"
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
    assert processes_of(folder) == []


def test_the_store_goes_on_after_its_server_was_killed(monkeypatch):
    monkeypatch.setattr(sys, "executable", loaded_python())
    with Ours() as ours:
        assert 0.0 < ours.kill() < 30.0


def test_no_kills_are_refused():
    with pytest.raises(ConfigError, match="at least one kill"):
        bench_recovery(0, lambda text: None)
