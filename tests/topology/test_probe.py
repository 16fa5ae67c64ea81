import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clock import at_most
from gradtide.errors import TopologyError
from gradtide.topology.files import read_topology, write_topology
from gradtide.topology.probe.fit import Fit, Sample, build_topology, fit_link, measure_link
from gradtide.topology.probe.machine import ProbeCrew, probe_machine


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """A process that has ended may stay as a zombie until whoever adopted it looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_perfect_wire_is_fitted_exactly():
    fit = fit_link([Sample(size, 5e-6 + size / 2e9) for size in (64, 4096, 10**6, 10**7)])
    assert fit.latency_s == pytest.approx(5e-6, rel=1e-6)
    assert fit.bytes_per_s == pytest.approx(2e9, rel=1e-6)
    assert fit.worst_ratio == pytest.approx(1)


def test_a_wire_that_lets_a_burst_pass_is_as_fast_as_the_largest_sizes_say():
    """A token bucket of 256 kB before a wire of 125 MB/s; what fits into it passes at 2 GB/s."""
    sizes = (64, 4_096, 262_144, 1_048_576, 4_194_304)
    samples = [Sample(n, 60e-6 + min(n, 256_000) / 2e9 + max(0, n - 256_000) / 125e6) for n in sizes]
    assert fit_link(samples).bytes_per_s > 300e6
    fit = fit_link(samples, lets_bursts_pass=True)
    assert fit.bytes_per_s == pytest.approx(125e6)
    assert fit.latency_s == pytest.approx(60e-6, rel=0.01)


def test_the_smallest_and_the_largest_sizes_count_alike():
    """An absolute fit would miss the latency by far: 10 % of 10 ms is a hundred times the latency."""
    samples = [Sample(64, 5e-6), Sample(4096, 7e-6), Sample(10**6, 5.4e-4), Sample(2 * 10**7, 11e-3)]
    fit = fit_link(samples)
    assert 4e-6 < fit.latency_s < 6e-6
    assert 1.7e9 < fit.bytes_per_s < 2.1e9


def test_noise_never_gives_a_negative_latency_or_bandwidth():
    falling = fit_link([Sample(64, 3e-6), Sample(4096, 2e-6), Sample(10**6, 1e-6)])
    assert falling.latency_s >= 0
    assert falling.bytes_per_s > 0
    steep = fit_link([Sample(1000, 1e-7), Sample(10**6, 1e-3)])
    assert steep.latency_s == 0
    assert steep.bytes_per_s > 0
    for bad in ([Sample(64, 1.0)], [Sample(64, 0.0), Sample(128, 1.0)]):
        with pytest.raises(TopologyError):
            fit_link(bad)


def test_each_size_is_its_median_so_one_slow_transfer_does_not_count():
    def transfer(size_bytes: int, times: int) -> list[float]:
        seconds = [1e-6 + size_bytes / 1e9] * times
        seconds[0] *= 100
        return seconds

    assert measure_link(transfer, (1000, 2000)) == [Sample(1000, 2e-6), Sample(2000, 3e-6)]


def test_fits_of_any_origin_become_a_topology():
    fits = {("a", "b"): Fit(1.23456e-6, 1.23456e9, 1.0), ("b", "a"): Fit(1e-6, 2e9, 1.0)}
    topology = build_topology("job", {"a": "host0", "b": "host1"}, fits)
    assert [(k.source, k.bytes_per_s, k.latency_s) for k in topology.links] == [
        ("a", 1.23e9, 1.23e-6), ("b", 2e9, 1e-6)
    ]  # fmt: skip
    assert [node.machine for node in topology.nodes] == ["host0", "host1"]
    with pytest.raises(TopologyError, match="'b' can't reach 'a'"):
        build_topology("job", {"a": "x", "b": "x"}, {("a", "b"): Fit(0, 1e9, 1.0)})


def test_a_probe_measures_each_pair_each_way_and_leaves_no_process(tmp_path):
    before = children_of(os.getpid())
    topology = probe_machine(3, budget_s=0.5)
    assert children_of(os.getpid()) == before
    assert len(topology.links) == 6
    for link in topology.links:
        assert 1e7 < link.bytes_per_s < 1e12
        assert 0 <= link.latency_s < 1e-2
    write_topology(topology, tmp_path / "probe.toml")
    assert read_topology(tmp_path / "probe.toml") == topology


@pytest.mark.parametrize("count", [-1, 0, 1, 17])
def test_a_probe_of_too_few_or_too_many_processes_is_refused(count):
    with pytest.raises(TopologyError, match="from 2 to 16 processes"):
        probe_machine(count)


def test_a_process_that_dies_is_an_error_and_the_others_are_ended():
    before = set(children_of(os.getpid()))
    with ProbeCrew(3, wait_s=20) as crew:
        pids = [pid for pid in children_of(os.getpid()) if pid not in before]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TopologyError, match="process 1 ended while it was measured"):
            crew.transfer(0, 1, 1_000_000, 3)
    assert set(children_of(os.getpid())) == before


def test_a_process_that_hangs_is_given_up_at_the_deadline():
    before = set(children_of(os.getpid()))
    start = time.monotonic()
    with ProbeCrew(2, wait_s=2) as crew:
        pids = [pid for pid in children_of(os.getpid()) if pid not in before]
        os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(TopologyError, match=r"process 1 gave no answer in 2 s"):
            crew.transfer(0, 1, 10, 1)
    assert time.monotonic() - start < at_most(10)
    assert set(children_of(os.getpid())) == before


def test_no_process_outlives_a_parent_that_is_killed():
    code = (
        "import time\nfrom gradtide.topology.probe.machine import ProbeCrew\n"
        "with ProbeCrew(2, wait_s=30) as crew:\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        orphans = children_of(parent.pid)
        assert len(orphans) == 2
        parent.kill()
        parent.wait(timeout=10)
    until = time.monotonic() + 10
    while any(is_running(pid) for pid in orphans) and time.monotonic() < until:
        os.sched_yield()
    assert not any(is_running(pid) for pid in orphans)
