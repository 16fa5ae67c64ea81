"""Real processes under fire: what `gradtide chaos` runs."""

import os
import shutil
import socket
import subprocess
import sys
from random import Random

import pytest

from clock import at_most
from gradtide.chaos.drill import Drill, run_chaos, victims
from gradtide.chaos.networks import MachineNetwork, flows_of
from gradtide.errors import ConfigError
from gradtide.store.local.forkserver import Alive
from gradtide.store.wire.messages import ServerEntry, Table
from loaded_python import loaded_python


@pytest.fixture
def _quick_workers(monkeypatch):
    monkeypatch.setattr(sys, "executable", loaded_python())


@pytest.mark.usefixtures("_quick_workers")
def test_ten_kills_lose_and_double_nothing(forks):
    report = run_chaos(Drill(faults=10, kinds=("kill",), workers=2, pause_s=0.1), forks=forks)
    assert (report.faults, report.lost, report.doubled) == (10, 0, 0)
    assert report.pushes > 100
    assert report.replicated > 0
    assert report.quantile(0.5) < 1.0, "far above what a quiet machine shows, for this one may be busy"


@pytest.mark.usefixtures("_quick_workers")
def test_servers_that_are_stopped_and_coordinators_that_are_killed_cost_nothing_either(forks):
    report = run_chaos(Drill(faults=4, kinds=("stop", "coordinator"), seed=3, workers=2, pause_s=0.1), forks=forks)
    assert (report.faults, report.lost, report.doubled) == (4, 0, 0)


def may_make_networks() -> bool:
    return (
        bool(shutil.which("ip")) and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    )


needs_networks = pytest.mark.skipif(
    not may_make_networks() or not shutil.which("nft"), reason="needs root, iproute2 and nftables"
)
ISLANDS = ("kill", "cut", "stall", "disk")


@needs_networks
def test_machines_that_are_killed_cut_off_stalled_and_out_of_disk_lose_nothing():
    """Each fault once, each process in a network of its own."""
    before = os.readlink("/proc/thread-self/ns/net")
    report = run_chaos(Drill(faults=4, kinds=ISLANDS, workers=2, pause_s=0.1))
    assert (report.faults, report.lost, report.doubled) == (4, 0, 0)
    assert report.pushes > 0
    assert set(report.longest_s) == set(ISLANDS)
    assert max(report.longest_s.values()) < at_most(10), "4.5 s on a quiet machine"
    assert os.readlink("/proc/thread-self/ns/net") == before


@needs_networks
@pytest.mark.slow
def test_a_hundred_rounds_of_faults_between_machines_lose_and_double_nothing():
    report = run_chaos(Drill(faults=100, kinds=ISLANDS, seed=17))
    assert (report.faults, report.lost, report.doubled) == (100, 0, 0)


@needs_networks
def test_a_stalled_flow_loses_what_one_end_says_and_new_connections_pass():
    network = MachineNetwork()
    try:
        address = network.add("there")
        with network.at("there"):
            there = subprocess.Popen([sys.executable, "-c", ECHO, address], stdout=subprocess.PIPE)
        with there:
            try:
                there.stdout.readline()
                with dial(address) as stalled:
                    assert echoes(stalled, 10)
                    network.stall(there.pid, Random(0))
                    assert not echoes(stalled, 0.5)
                    with dial(address) as fresh:
                        assert echoes(fresh, 10)
                    assert flows_of(there.pid), "neither end was told"
            finally:
                there.kill()
    finally:
        network.close()


ECHO = """
import socket, sys, threading
with socket.create_server((sys.argv[1], 7077)) as listener:
    print("listens", flush=True)
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=lambda peer=peer: [peer.sendall(peer.recv(1)) for _ in iter(int, 1)]).start()
"""


def dial(address):
    return socket.create_connection((address, 7077), timeout=10)


def echoes(sock, timeout_s):
    sock.settimeout(timeout_s)
    sock.sendall(b"?")
    try:
        return sock.recv(1) == b"?"
    except TimeoutError:
        return False


def test_coordinators_are_not_killed_where_they_could_not_be_started_again():
    with pytest.raises(ConfigError, match="kill or stop beside cut"):
        run_chaos(Drill(kinds=("cut", "coordinator")))


def test_a_server_that_holds_nothing_is_no_victim_because_nobody_would_notice():
    entries = tuple(ServerEntry(f"server-{i}", f"unix:/{i}", 1) for i in range(3))
    table = Table(1, 1, entries, (0, 2), 1, ((2,), (0,)), ((), ()), (0, 0))
    there = [Alive("coordinator", "coordinator", 1), *(Alive("server", entry.name, 2) for entry in entries)]
    assert [process.name for process in victims("stop", there, table)] == ["server-0", "server-2"]
    assert [process.name for process in victims("coordinator", there, table)] == ["coordinator"]


def test_a_script_of_ones_own_can_be_disturbed(forks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, gradtide\n"
        "with gradtide.connect(sys.argv[1]) as store:\n"
        "    store.init('w', torch.zeros(3), update=gradtide.update('add'))\n"
        "    for step in range(3000):\n"
        "        store.push('w', torch.ones(3)).wait()\n"
        "    assert store.pull('w').tolist() == [3000.0] * 3\n"
    )
    plan = Drill(faults=2, workers=0, pause_s=0.1, script=(loaded_python(), str(script), "{address}"))
    report = run_chaos(plan, forks=forks)
    assert report.faults >= 1


def test_an_unknown_fault_is_named():
    with pytest.raises(ConfigError, match="'flood'"):
        run_chaos(Drill(kinds=("flood",)))


@pytest.mark.usefixtures("_quick_workers")
@pytest.mark.parametrize("compress", ["topk:0.02", pytest.param("onebit", marks=pytest.mark.slow)])
def test_compressed_pushes_through_kills_are_all_there_when_what_was_left_out_is_pushed(forks, compress):
    report = run_chaos(Drill(faults=2, workers=2, pause_s=0.1, compress=compress), forks=forks)
    assert (report.faults, report.lost, report.doubled) == (2, 0, 0)
    assert report.pushes > 10


def test_a_codec_that_loses_something_can_not_be_counted():
    with pytest.raises(ConfigError, match="give a codec that loses nothing, onebit or topk"):
        run_chaos(Drill(compress="int8"))
