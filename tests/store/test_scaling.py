"""Servers come and go while somebody trains: real processes."""

import os
import signal
import subprocess
import threading

import pytest
import torch

import gradtide
from gradtide.errors import ConfigError
from gradtide.store.local.scaling import scale
from loaded_python import loaded_python
from store_processes import pid_of, wait_until

KEYS = [f"k{i}" for i in range(24)]


def is_even(table, count, tolerance):
    """Does a client know that there are so many servers, and that none holds much more than another?"""
    held = [table.owners.count(i) for i in range(len(table.servers))]
    return len(held) == count and max(held) - min(held) <= tolerance


class Trainer:
    """Pushes random gradients to keys under Adam, and does the same alone."""

    def __init__(self, address):
        self.store = gradtide.connect(address)
        self.store.init({key: torch.zeros(500) for key in KEYS}, update=gradtide.update("adam", lr=0.1))
        self._value = torch.zeros(500, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._value], lr=0.1)
        self._ended, self.steps, self._failure = threading.Event(), 0, None
        self._thread = threading.Thread(target=self._train)

    def _train(self):
        generator = torch.Generator().manual_seed(7)
        try:
            while not self._ended.is_set():
                gradient = torch.randn(500, generator=generator)
                self.store.push(KEYS, [gradient] * len(KEYS)).wait(timeout_s=30)
                self._value.grad = gradient
                self._optimizer.step()
                self.steps += 1
        except BaseException as error:
            self._failure = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()
        self.store.close()

    def wait_for_steps(self, count=5):
        wanted = self.steps + count
        wait_until(lambda: self.steps >= wanted or self._failure)
        assert self._failure is None

    def check(self):
        """Every value is what torch.optim gives for the same gradients: nothing lost, nothing twice, state moved."""
        self._ended.set()
        self._thread.join()
        assert self._failure is None
        for value in self.store.pull(KEYS):
            assert torch.equal(value, self._value.detach())


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_store_that_grows_and_shrinks_trains_on_with_the_same_bits(forks, replicas):
    with gradtide.local_servers(2, replicas=replicas, forks=forks) as servers, Trainer(servers.address) as trainer:
        for count in (4, 2, 3):
            trainer.wait_for_steps()
            report = servers.scale(count)
            assert len(report.servers) == count
            wait_until(lambda count=count: is_even(trainer.store.table, count, 64 if replicas else 1))
            wait_until(lambda count=count: len(servers.processes) == count + 1)
        trainer.wait_for_steps()
        trainer.check()


@pytest.mark.parametrize("replicas", [0, 1])
def test_sigterm_empties_a_server_before_it_goes_for_good(forks, replicas):
    with gradtide.local_servers(3, replicas=replicas, forks=forks) as servers, Trainer(servers.address) as trainer:
        trainer.wait_for_steps()
        leaver = pid_of(servers, "server-1")
        os.kill(leaver, signal.SIGTERM)
        wait_until(lambda: len(servers.processes) == 3)
        assert leaver not in [process.pid for process in servers.processes]
        trainer.wait_for_steps()
        assert {server.name for server in trainer.store.table.servers} == {"server-0", "server-2"}
        trainer.check()


def test_what_nobody_has_touched_moves_as_well(forks):
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        servers.scale(3)
        servers.scale(1)
        servers.scale(2)
        store.init("w", torch.ones(3))
        assert store.pull("w").tolist() == [1.0] * 3


def test_mistakes_in_scaling_are_one_clear_line(forks):
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers:
        with pytest.raises(ConfigError, match="1 servers are too few: each of the 2 copies is on a server of its own"):
            servers.scale(1)
        with pytest.raises(ConfigError, match="0 servers are too few"):
            servers.scale(0)
        os.unlink(f"{servers.folder}/starter")
        with pytest.raises(ConfigError, match=r"start 1 more by hand, as in: gradtide serve .* --name server-2"):
            scale(servers.address, 3)


def serve(folder, name):
    command = [loaded_python(), "-m", "gradtide", "serve", f"unix:{folder}/{name}", "--name", name]
    process = subprocess.Popen(
        [*command, "--coordinator", f"unix:{folder}/coordinator"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline()
    return process


def test_a_server_that_was_started_by_hand_joins_is_emptied_and_ends_with_exit_code_0(forks):
    with gradtide.local_servers(1, forks=forks) as servers, Trainer(servers.address) as trainer:
        with serve(servers.folder, "server-9") as by_hand:
            wait_until(lambda: trainer.store.table.owners.count(1) == 512)
            trainer.wait_for_steps()
            by_hand.send_signal(signal.SIGTERM)
            assert by_hand.wait(timeout=20) == 0
        assert len(trainer.store.table.servers) == 1
        trainer.wait_for_steps()
        trainer.check()


def test_a_second_sigterm_ends_a_server_at_once_and_it_says_what_it_held(forks):
    with gradtide.local_servers(1, forks=forks) as servers, serve(servers.folder, "server-9") as by_hand:
        with gradtide.connect(servers.address) as store:
            wait_until(lambda: store.table.owners.count(1) == 512)
            stopped = pid_of(servers, "server-0")
            os.kill(stopped, signal.SIGSTOP)  # so that nobody can take anything over
            try:
                by_hand.send_signal(signal.SIGTERM)
                wait_until(lambda: store.table.leaving == (1,))
                by_hand.send_signal(signal.SIGTERM)
                assert by_hand.wait(timeout=20) == 2
            finally:
                os.kill(stopped, signal.SIGCONT)
        assert b"server-9 was told twice to go; it was still primary of 512 shards" in by_hand.stderr.read()


def test_the_command_scales_a_store_and_says_what_is_wrong(forks):
    from typer.testing import CliRunner

    from gradtide.cli.app import app

    def scale_by_command(*arguments):
        return CliRunner().invoke(app, ["scale", *arguments])

    with gradtide.local_servers(1, forks=forks) as servers:
        done = scale_by_command(servers.address, "--servers", "2")
        assert "started: server-1\n2 servers: server-0, server-1 (after " in done.stdout
        assert "let go: server-1\n1 servers: server-0" in scale_by_command(servers.address, "--servers", "1").stdout
        assert "say what to scale" in str(scale_by_command(servers.address).exception)
    assert "no job run-gone" in str(scale_by_command("run-gone", "--workers", "2").exception)
