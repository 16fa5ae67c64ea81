"""Traces of real runs: workers, servers, and arrows that pair up between them."""

import os
import shutil
import signal
import subprocess
from collections import Counter as Count

import pytest
import torch
from trace_format import Complete, FlowEnd, FlowStart, Instant, check_trace

import gradtide
from gradtide.events import BatchDone, BatchStarted, GradientsSynchronised, LinksPlanned, PushBegan, ValuesPulled
from gradtide.observe.event_log import EventLog, log_path, read_events
from gradtide.observe.run_facts import read_facts
from gradtide.observe.trace import write_trace
from loaded_python import loaded_python

STEPS = 6  # of an epoch


def train(folder, *options):
    command = [loaded_python(), "-m", "gradtide", "train", "--workers", "2", "--epochs", "1", "--name", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "run"


def arrows(events):
    """How many there are of each kind, from whom to whom."""
    names = {event.pid: event.args.name for event in events if getattr(event, "name", "") == "process_name"}
    ends = {event.id: event for event in events if isinstance(event, FlowEnd)}
    starts = [event for event in events if isinstance(event, FlowStart)]
    return Count((start.name.split(",")[0], names[start.pid], names[ends[start.id].pid]) for start in starts)


@pytest.fixture(scope="module")
def over_servers(tmp_path_factory):
    return train(tmp_path_factory.mktemp("servers"), "--servers", "2", "--trace")


def test_every_push_and_pull_of_a_run_over_servers_is_an_arrow_there_and_back(over_servers):
    events = check_trace((over_servers / "trace.json").read_bytes())
    workers, servers = ("worker 0", "worker 1"), ("server-0", "server-1")
    there = {("push", worker, server): STEPS for worker in workers for server in servers}
    back = {
        (what, server, worker): STEPS for what in ("pull", "round closed") for worker in workers for server in servers
    }
    assert arrows(events) == there | back
    rounds = Count(event.name for event in events if isinstance(event, Complete) and event.name.startswith("round"))
    assert rounds == {f"round {number}": 2 for number in range(1, STEPS + 1)}
    marks = [event.name for event in events if isinstance(event, Instant)]
    assert "server-1 has come" in marks
    assert "in the rounds: worker 0, worker 1" in marks


def test_a_run_over_servers_tells_what_is_pushed_and_pulled_over_each_link_and_that_it_has_ended(over_servers):
    sizes = {}
    for rank in range(2):
        (planned, *_) = (e for _, e in read_events(log_path(over_servers, rank)) if isinstance(e, LinksPlanned))
        sizes |= {(source, target): size for source, target, size in planned.loads}
    names = [(f"worker {rank}", f"server-{number}") for rank in range(2) for number in range(2)]
    assert set(sizes) == {*names, *(pair[::-1] for pair in names)}
    assert all(sizes[pair] == sizes[pair[::-1]] > 0 for pair in names)
    facts = read_facts(over_servers)
    assert facts.ended_unix_s is not None
    assert facts.code == 0


def test_workers_without_servers_point_at_each_other(tmp_path):
    """And servers that nobody watches write nothing."""
    folder = train(tmp_path, "--sync", "ring")
    events = check_trace((folder / "trace.json").read_bytes())
    assert {(start, end) for _, start, end in arrows(events)} == {("worker 0", "worker 1"), ("worker 1", "worker 0")}
    assert sum(arrows(events).values()) == 2 * STEPS
    assert {path.name for path in folder.glob("*.jsonl")} == {"worker-0.jsonl", "worker-1.jsonl", "metrics.jsonl"}


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bounded:2", "async"])
def test_where_nobody_waits_for_a_round_pushes_still_have_arrows(tmp_path, sync):
    folder = train(tmp_path, "--servers", "2", "--sync", sync, "--trace")
    found = arrows(check_trace((folder / "trace.json").read_bytes()))
    pushed = {(start, end): count for (what, start, end), count in found.items() if what == "push"}
    assert len(pushed) == 4
    assert all(count >= STEPS for count in pushed.values())
    assert any(what == "pull" for what, _, _ in found) == (sync != "async")


@pytest.mark.slow
def test_compressed_and_local_steps_and_a_split_model_give_sound_traces(tmp_path):
    for number, options in enumerate(
        [("--servers", "2", "--compress", "int8"), ("--servers", "2", "--every", "2"), ("--split", "0..4 | 5..9"), ()]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        events = check_trace((train(folder, *options, "--trace") / "trace.json").read_bytes())
        if "--servers" in options:
            assert sum(what == "push" for what, _, _ in arrows(events)) == 4
        if "--split" in options:
            assert {"forward", "backward", "update"} <= {e.name for e in events if getattr(e, "cat", "") == "task"}
            found = arrows(events)
            assert found["message", "worker 0", "worker 1"] == found["message", "worker 1", "worker 0"] + 1  # evaluated
            assert found["message", "worker 1", "worker 0"] >= STEPS


def test_a_server_that_is_killed_is_in_the_trace_and_so_is_who_took_over(tmp_path, forks):
    log = EventLog(log_path(tmp_path, 0))
    with (
        gradtide.local_servers(3, replicas=1, events=tmp_path, forks=forks) as servers,
        gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp") as store,
    ):
        store.init("w", torch.zeros(5_000_000), update=gradtide.update("add"))
        for step in range(1, 9):
            log.observe(BatchStarted())
            log.observe(PushBegan(step, store.sequence))
            store.push("w", torch.ones(5_000_000), wait=True)
            log.observe(GradientsSynchronised(1))
            store.pull("w")
            log.observe(ValuesPulled(step, 0, store.sequence))
            log.observe(BatchDone(1, step, 1, 0.5, None, 0.1))
            if step == 4:
                victim = next(process for process in servers.processes if process.role == "server")
                os.kill(victim.pid, signal.SIGKILL)
                servers.wait_until_healed(victim.pid)
    log.close()
    about = write_trace(tmp_path / "trace.json", tmp_path, "killed")
    events = check_trace((tmp_path / "trace.json").read_bytes())
    assert about["arrows_left_out"] == 0
    marks = [(event.cat, event.name) for event in events if isinstance(event, Instant)]
    assert ("bad", f"{victim.name} was lost") in marks
    assert any(kind == "good" and "replicas took over" in text for kind, text in marks)
    assert sum(count for (what, _, _), count in arrows(events).items() if what == "push") >= 8 * 2


def test_perfetto_reads_it_without_a_complaint(over_servers, tmp_path):
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("Perfetto's trace_processor_shell is not here")
    queries = {
        "select count(1) as found from slice": lambda n: n > 100,
        "select count(1) as found from flow": lambda n: n == 12 * STEPS,
        "select count(1) as found from stats where severity = 'error' and value > 0": lambda n: n == 0,
    }
    for query, is_right in queries.items():
        (tmp_path / "query.sql").write_text(query + ";\n")
        command = [shell, "-q", str(tmp_path / "query.sql"), str(over_servers / "trace.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert is_right(int(done.stdout.split()[-1])), done.stdout
