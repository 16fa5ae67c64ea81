"""fit(balance=True): parts follow the measured speed of devices and workers, and what is trained stays what it was."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradtide
from gradtide.errors import ConfigError
from gradtide.events import BatchStarted, SharesChanged
from gradtide.observe.meter import Timed
from gradtide.parallel import split_batch
from gradtide.parallel.devices import pool
from gradtide.parallel.devices.pool import find_devices
from gradtide.train.record import RunFolder, read_metrics
from gradtide.train.together.merge import merge
from loaded_python import loaded_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from balanced_fit import X, build, fit  # noqa: E402


class DeviceClock(threading.local):
    """Each device's thread has its own."""

    now_s = 0.0


class Costs(nn.Module):
    """Every sample takes a device's thread so long, by the device's name."""

    def __init__(self, clock, sample_s):
        super().__init__()
        self.clock, self.sample_s = [clock], sample_s

    def forward(self, x):
        self.clock[0].now_s += len(x) * self.sample_s.get(threading.current_thread().name, 0.0)
        return x

    def __deepcopy__(self, memo):
        return Costs(self.clock[0], self.sample_s)


@pytest.fixture
def clock(monkeypatch):
    found = DeviceClock()
    monkeypatch.setattr(pool, "time", SimpleNamespace(perf_counter=lambda: found.now_s))
    return found


UNEQUAL = {"gradtide cpu:0": 1e-3, "gradtide cpu:1": 2e-3, "gradtide cpu:2": 2e-3}


def test_devices_get_parts_by_their_speed_and_train_what_one_device_trains(clock):
    wanted, _ = fit(build())
    found, changes = fit(build(Costs(clock, UNEQUAL)), devices=3, balance=True)
    assert changes == [[12, 6, 6]]
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_equal_devices_keep_equal_parts(clock):
    _, changes = fit(build(Costs(clock, dict.fromkeys(UNEQUAL, 1e-3))), devices=3, balance=True)
    assert changes == []


def test_with_batch_norm_a_device_gets_two_samples_at_least_unless_all_share_it(clock):
    costs = Costs(clock, {"gradtide cpu:0": 1e-3, "gradtide cpu:1": 1.0})
    _, changes = fit(build(costs, nn.BatchNorm1d(5)), devices=2, balance=True)
    assert changes[-1] == [22, 2]
    wanted, _ = fit(build(nn.BatchNorm1d(5)))
    found, changes = fit(build(costs, nn.BatchNorm1d(5)), devices=2, balance=True, sync_batch_norm=True)
    assert changes[-1] == [23, 1]  # what the first waits for the second there is not measured
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_what_a_device_waits_for_others_is_not_its_work(monkeypatch):
    ticks = DeviceClock()

    def tick():
        """Every look at the clock is a second later."""
        ticks.now_s += 1.0
        return ticks.now_s

    monkeypatch.setattr(pool, "time", SimpleNamespace(perf_counter=tick))
    with pool.DevicePool(find_devices(2)) as devices:
        devices.run(lambda index: devices.meeting.exchange(index, None))
        assert devices.meeting.waited_s == [1.0, 1.0]
        assert devices.seconds == [2.0, 2.0]  # of three


@pytest.mark.parametrize("sizes", [[3, 2], [2, 2, 2], [5, 0, 1], [6]])
def test_sizes_that_are_not_the_batch_are_refused(sizes):
    with pytest.raises(ConfigError, match="give one for each, 1 or more, which add up to the batch"):
        split_batch((X[:5], X[:5]), find_devices(3), sizes=sizes)


def test_metrics_say_who_takes_what_and_why(tmp_path, clock):
    record = RunFolder(tmp_path / "run")
    fit(build(Costs(clock, UNEQUAL)), devices=3, balance=True, emit=record.observer("balanced"))
    record.close()
    (line,) = [line for line in read_metrics(record.metrics) if line["kind"] == "shares"]
    assert (line["who"], line["samples"]) == ("device", [12, 6, 6])
    assert "device 1 takes 6 of 24 samples (2 ms a sample)" in line["text"]
    change = SharesChanged("worker", [16, 8], "because")
    logs = {rank: [Timed(1.0, BatchStarted()), Timed(2.0, change)] for rank in range(2)}
    assert [line["samples"] for line in merge("run", logs)] == [[16, 8]]  # once, not for each worker


def test_in_async_fit_refuses_balance(forks):
    with gradtide.local_servers(1, forks=forks) as servers, pytest.raises(ConfigError, match="in async nobody does"):
        fit(build(), sync=gradtide.Servers("async", address=servers.address), balance=True)


def test_workers_get_parts_by_their_speed_and_train_what_one_process_trains(tmp_path):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", str(HERE / "balanced_fit.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted, _ = fit(build())
    for rank in range(2):
        for devices, (found, changes) in torch.load(tmp_path / f"found-{rank}.pt").items():
            workers = [change for change in changes if sum(change) == 24]
            assert workers[-1] == [16, 8], devices
            for a, b in zip(found, wanted, strict=True):
                assert torch.allclose(a, b, rtol=0, atol=1e-10)
