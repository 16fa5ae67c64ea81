"""Processes: healing, no orphans, the roles on the command line."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import gradtide
from gradtide.errors import AuthenticationError, ConfigError
from gradtide.processes.ready import can_read, can_write
from gradtide.processes.scratch import ScratchFolder
from gradtide.store.local.status import ask_status
from gradtide.transport.keys import derive_key_file, make_secret_file, read_credentials
from loaded_python import loaded_python


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        select.select([], [], [], 0.01)


def test_what_dies_is_started_again(forks):
    with gradtide.local_servers(2, forks=forks) as servers, gradtide.connect(servers.address) as store:
        assert sorted(process.name for process in servers.processes) == ["coordinator", "server-0", "server-1"]
        victim = next(process.pid for process in servers.processes if process.name == "server-1")
        os.kill(victim, signal.SIGKILL)
        servers.wait_until_healed(victim)
        store.init("w", torch.zeros(3_000_000), update=gradtide.update("add"))  # on both servers
        assert torch.equal(store.push_pull("w", torch.ones(3_000_000)), torch.ones(3_000_000))


def test_the_folder_is_ours_alone_and_gone_afterwards(forks):
    with gradtide.local_servers(1, forks=forks) as servers:
        folder, pids = Path(servers.folder), [process.pid for process in servers.processes]
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(lives(pid) for pid in pids)
    assert not folder.exists()
    assert not any(lives(pid) for pid in pids)


def test_nothing_is_left_when_the_parent_is_killed():
    code = (
        "import gradtide, sys\n"
        "servers = gradtide.local_servers(2)\n"
        "print(servers.folder, *(p.pid for p in servers.processes), servers._forks._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder, *pids = parent.stdout.readline().split()
    assert len(pids) == 4
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    wait_until(lambda: not any(lives(int(pid)) for pid in pids))
    wait_until(lambda: not Path(folder).exists())


def test_the_folder_of_a_process_that_was_killed_is_swept_at_the_next_start(tmp_path, monkeypatch):
    code = """if True:
        import os, signal
        from gradtide.processes.scratch import ScratchFolder
        print(ScratchFolder().path, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    left = killed.stdout.strip()
    assert os.path.isdir(left)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ScratchFolder() as first, ScratchFolder():
        assert not os.path.exists(left)
        assert os.path.isdir(first.path)
    assert not list(tmp_path.glob("gradtide-*"))


def test_the_folder_goes_also_when_the_process_that_made_the_servers_was_killed():
    with gradtide.local_servers(1) as servers:
        os.kill(servers._forks._process.pid, signal.SIGKILL)
        servers._forks._process.wait()
    assert not os.path.exists(servers.folder)


def test_descriptors_above_what_select_knows_are_waited_for_like_any(tmp_path):
    low = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        read, write = os.pipe()
        assert read > 1023
        assert can_read([read], 0) == []
        os.write(write, b"x")
        assert can_read([read], 10) == [read]
        assert can_write([write], 10) == [write]
        os.close(read)
        os.close(write)
    finally:
        for number in low:
            os.close(number)


def test_zero_servers_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        gradtide.local_servers(0)


def run_cli(*arguments):
    return subprocess.Popen(
        [loaded_python(), "-m", "gradtide", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_roles_run_over_tcp_with_a_secret_and_can_be_looked_into(tmp_path):
    """The coordinator in clear, as TCP on one machine is; the server with TLS, as between machines."""
    secret, key, operator = tmp_path / "secret", tmp_path / "w3", tmp_path / "operator"
    make_secret_file(secret)
    derive_key_file(secret, key, "worker", "w3")
    derive_key_file(secret, operator, "operator", "")
    roles = [run_cli("coordinator", "tcp:127.0.0.1:0", "--secret-file", str(secret))]
    try:
        address = roles[0].stdout.readline().split()[-1]
        roles.append(
            run_cli("serve", "tls:127.0.0.1:0", "--coordinator", address, "--name", "s0", "--secret-file", str(secret))
        )
        assert roles[1].stdout.readline().startswith("s0 listens at tls:127.0.0.1:")
        with gradtide.connect(address, secret_file=key) as store:
            store.init("w", torch.arange(6.0).view(2, 3), update=gradtide.update("add"))
            assert torch.equal(store.push_pull("w", torch.ones(2, 3)), torch.arange(6.0).view(2, 3) + 1)
            large = torch.arange(3_000_000.0)
            store.init("large", large, update=gradtide.update("add"))
            assert torch.equal(store.push_pull("large", large), 2 * large)
            _look_inside(address, str(secret))
            assert ask_status(address, read_credentials(operator)).servers["s0"] is not None
        other = tmp_path / "other"
        make_secret_file(other)
        with pytest.raises(AuthenticationError, match="wrong secret"):
            gradtide.connect(address, secret_file=other)
        with pytest.raises(AuthenticationError, match="secret_file"):
            gradtide.connect(address)
    finally:
        for role in reversed(roles):  # a server can only hand over, or learn that nobody is left, from a coordinator
            role.terminate()
            _, errors = role.communicate(timeout=20)
            assert role.returncode == 0, errors
            refused = "refused 'worker' from 127.0.0.1: it does not know the secret"  # once for both
            warned = "it keeps no journal, so if it dies the store is lost; give --journal"
            assert errors == (f"coordinator: {warned}\ncoordinator: {refused}\n" if role is roles[0] else "")


def _look_inside(address, secret):
    from typer.testing import CliRunner

    from gradtide.cli.app import app

    runner = CliRunner()
    listed = runner.invoke(app, ["store", "ls", address, "--secret-file", secret, "--json"])
    assert '"key": "w", "shape": [2, 3]' in listed.output
    assert "float32" in runner.invoke(app, ["store", "ls", address, "--secret-file", secret]).output
    assert (
        "tensor([[4., 5., 6.]])"
        in runner.invoke(app, ["store", "get", address, "w", "--rows", "1:2", "--secret-file", secret]).output
    )
    assert '"server": "s0"' in runner.invoke(app, ["store", "stat", address, "--secret-file", secret, "--json"]).output


def test_closing_a_store_of_this_machine_twice_does_nothing(forks):
    servers = gradtide.local_servers(1, forks=forks)
    servers.close()
    servers.close()
    assert servers.processes == []
