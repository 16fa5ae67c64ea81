"""A job on several nodes, each with an agent: as on one machine, for whoever looks at it."""

import os
import signal
import subprocess
import threading
import time

import pytest
from fleet import Fleet, is_gone
from runs import LIMIT_S, wait_until

from clock import at_most
from gradtide.errors import PeerTimeout
from gradtide.launch import agent as agent_module
from gradtide.launch.agent import Agent
from gradtide.launch.messages import Ended, Failure
from gradtide.launch.nodes.door import Door
from gradtide.launch.nodes.wire import aged, here
from gradtide.transport.authenticate import Address
from gradtide.transport.keys import Credentials, Key


def test_workers_of_two_nodes_write_to_one_output_and_the_first_failure_decides(script):
    path = script(
        """
        import os, sys, time
        print("here", os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], flush=True)
        assert open(os.environ["GRADTIDE_SECRET_FILE"]).read().startswith("gradtide-key root")
        seen = os.path.join(os.path.dirname(__file__), "seen")
        if os.environ["RANK"] == "1":
            while not os.path.exists(seen): time.sleep(0.01)
            print("last words")
            raise ValueError("boom")
        open(seen, "w").close()
        time.sleep(600)
        """
    )
    with Fleet(path) as fleet:
        agents = [fleet.start(name) for name in ("a", "b")]
        assert fleet.finish() == 1
        assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0]
    lines = fleet.lines
    assert {line[:-1] for line in lines if "here" in line} == {"[0] here 0 ", "[1] here 0 "}
    assert {line[-1] for line in lines if "here" in line} == {"0", "1"}, "which of the nodes came first is open"
    assert lines.index("[1] last words") < lines.index("[1] ValueError: boom")
    assert lines[-1] == "gradtide: worker 1 failed with exit code 1: ValueError: boom (script.py:9)"


def test_when_the_head_is_killed_nothing_is_left_on_any_node_after_two_seconds(script):
    path = script(
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print("pids", os.getpid(), child.pid, flush=True)
        time.sleep(600)
        """
    )
    with Fleet(path) as fleet:
        agents = [fleet.start(name, stderr=subprocess.PIPE) for name in ("a", "b")]
        wait_until(lambda: fleet.text.count("pids") == 2)
        pids = [int(pid) for line in fleet.lines if "pids" in line for pid in line.split()[2:]]
        fleet.head.kill()
        wait_until(lambda: all(map(is_gone, pids)))
        started_s = time.monotonic()
        for agent in agents:
            assert agent.wait(LIMIT_S) == 1
            assert b"the head at tcp:127.0.0.1" in agent.stderr.read()
            agent.stderr.close()
        assert time.monotonic() - started_s < at_most(5)


@pytest.mark.slow
def test_an_agent_ends_with_its_parent_and_its_workers_have_failed_by_name_of_the_node(script):
    path = script("import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)")
    with Fleet(path) as fleet:
        fleet.start("a")
        fleet.start("b").poll()
        wait_until(lambda: fleet.text.count("pid") == 2)
        fleet.agents["b"].send_signal(signal.SIGKILL)
        assert fleet.finish() == 1
        pids = [int(line.split()[2]) for line in fleet.lines if "] pid" in line]
        wait_until(lambda: all(map(is_gone, pids)))
    assert "was lost with node b: its connection closed" in fleet.lines[-1]


@pytest.mark.quick
def test_who_can_not_be_in_the_job_is_told_in_one_line(script, tmp_path):
    with Fleet(script("print('done')")) as fleet:
        fleet.start("a")
        wait_until(lambda: fleet.head.poll() is None)
        wrong = f"gradtide-key root - {os.urandom(32).hex()}\n".encode()
        stranger = fleet.start("c", secret=wrong, stderr=subprocess.PIPE)
        _, told = stranger.communicate(timeout=LIMIT_S)
        assert stranger.returncode == 2
        assert b"wrong secret for tcp:127.0.0.1" in told
        assert told.count(b"\n") == 1
        fleet.agents["first a"] = fleet.agents["a"]
        twin = fleet.start("a", stderr=subprocess.PIPE)
        _, told = twin.communicate(timeout=LIMIT_S)
        assert told == b"gradtide: a node a is in the job already; give each its own name\n"
        older = tmp_path / "torch-2.12.0.dist-info"
        older.mkdir()
        (older / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
        other = fleet.start("d", path=str(tmp_path), stderr=subprocess.PIPE)
        _, told = other.communicate(timeout=LIMIT_S)
        assert other.returncode == 2
        assert told.startswith(b"gradtide: node d can't be in the job: torch 2.12.0 there and 2.")
        assert told.endswith(b" at the head; install the same on all nodes\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_agent_that_is_asked_to_end_takes_its_workers_with_it_without_a_word(script, number):
    path = script("import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)")
    with Fleet(path, workers=1, nodes=("a",)) as fleet:
        agent = fleet.start("a", stderr=subprocess.PIPE)
        wait_until(lambda: "] pid" in fleet.text)
        agent.send_signal(number)
        _, told = agent.communicate(timeout=LIMIT_S)
        assert (agent.returncode, told) == (128 + number, b"")
        pid = next(int(line.split()[2]) for line in fleet.lines if "] pid" in line)
        assert is_gone(pid)
        assert fleet.finish() == 1
    assert "was lost with node a" in fleet.lines[-1]


def test_an_agent_waits_for_a_head_that_says_nothing_no_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(agent_module, "_CONNECT_S", 0.5)
    credentials = Credentials((Key(b"k" * 32),))
    door = Door(Address(host="127.0.0.1"), credentials, lambda visitor: None, 2.0)
    over = threading.Event()

    def answer():
        while not over.wait(0.01):
            door.turn()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with pytest.raises(PeerTimeout, match="has not taken node a in; is it stopped"):
            Agent(door.address, credentials, "a").run()
    finally:
        over.set()
        thread.join(LIMIT_S)
        door.close()


@pytest.mark.quick
def test_what_happened_on_another_machine_has_a_time_of_ours():
    now_s = time.monotonic()
    event = here(aged(Ended(3, 0, now_s - 5)))
    assert isinstance(event, Ended)
    assert event.at_s == pytest.approx(now_s - 5, abs=1)
    failure = here(aged(Failure(1, now_s - 2, "ValueError", "boom")))
    assert isinstance(failure, Failure)
    assert failure.kind == "ValueError"


@pytest.mark.slow
def test_nobody_ends_while_what_the_head_writes_is_not_read_for_longer_than_kernels_wait(script, tmp_path):
    path = script(
        """
        import time, torch, gradtide
        model = torch.nn.Linear(1, 1)
        model = gradtide.DataParallel(model, torch.optim.SGD(model.parameters(), 0.1))
        for number in range(30000):
            print(number, "x" * 400)
        for x, in gradtide.shard([(torch.ones(2, 1),)] * 20):
            model(x).sum().backward()
            model.step()
        model.close()
        print("finished")
        """
    )
    reads = threading.Event()

    class Unread(Fleet):
        def _read(self):
            reads.wait()
            super()._read()

    with Unread(path, needed=2) as fleet:
        try:
            agents = [fleet.start(name) for name in ("a", "b")]
            with pytest.raises(subprocess.TimeoutExpired):
                fleet.head.wait(25)
            assert [agent.poll() for agent in agents] == [None, None]
        finally:
            reads.set()
        assert fleet.finish() == 0
        assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0]
    assert len([line for line in fleet.lines if "xxx" in line]) == 60000
    assert len([line for line in fleet.lines if line.endswith("finished")]) == 2
