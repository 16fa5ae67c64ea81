"""`gradtide status` says what is wrong when a job hangs."""

import os
import re
import signal
import time

import torch
from typer.testing import CliRunner

import gradtide
from gradtide.cli.app import app


def show(address):
    shown = CliRunner().invoke(app, ["status", address], env={"COLUMNS": "160"})
    assert shown.exit_code == ("all is well" not in shown.output), shown.output
    return shown.output


def show_until(address, pattern, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not re.search(pattern, output := show(address)):
        assert time.monotonic() < deadline_s, output
    return output


def test_a_store_that_is_well_says_so(forks):
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init("w", torch.zeros(100), update=gradtide.update("add"))
        output = show(servers.address)
        assert "term 2, epoch 1" in output or "term 1, epoch 1" in output
        assert re.search(r"server-0\W+alive\W.*\W512\W+512\W", output)
        assert "1 other clients" in output
        assert "all is well" in output


def test_a_server_that_hangs_and_shards_without_a_replica_are_named(forks):
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers:
        show_until(servers.address, "all is well")
        stopped = next(process.pid for process in servers.processes if process.name == "server-1")
        os.kill(stopped, signal.SIGSTOP)
        try:
            output = show_until(servers.address, "lack a replica")
            assert re.search("server-1 has not been heard of for .* others have taken over", output)
            assert "1024 of 1024 shards lack a replica" in output
        finally:
            os.kill(stopped, signal.SIGCONT)
        show_until(servers.address, "all is well")


def test_a_round_says_whom_it_waits_for(forks):
    with (
        gradtide.local_servers(1, forks=forks) as servers,
        gradtide.connect(servers.address, worker=0, consistency="bsp") as first,
        gradtide.connect(servers.address, worker=1, consistency="bsp") as second,
    ):
        first.init("w", torch.zeros(3), update=gradtide.update("add"))
        second.pull("w")
        handle = first.push("w", torch.ones(3))
        show_until(servers.address, r"round \d+ of w waits for worker 1 \(alive\)")
        while not handle.done():
            second.push("w", torch.ones(3))
            second.pull("w", wait=False)
            time.sleep(0.01)
