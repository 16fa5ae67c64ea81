"""A client of a store on another host, when the wire between them is cut."""

import subprocess
import sys
from contextlib import ExitStack

import pytest

from gradtide.errors import ConfigError
from gradtide.testing.hosts import cut_wire, two_hosts

pytestmark = pytest.mark.slow
CLIENT = """
import os, sys, time, torch, gradtide
timeouts = gradtide.Timeouts(lost_s=1.0)
store = gradtide.connect("tcp:10.77.0.2:7000", secret_file=sys.argv[1], timeouts=timeouts)
store.init("w", torch.zeros(10), update=gradtide.update("add"))
print("ready", flush=True)
sys.stdin.readline()
began_s = time.monotonic()
try:
    store.push("w", torch.ones(10)).wait()
except gradtide.errors.PeerLost as error:
    print(time.monotonic() - began_s < 8, error, flush=True)
os._exit(0)
"""


def test_a_client_whose_wire_is_cut_notices_within_seconds_though_a_step_may_take_half_an_hour(tmp_path):
    secret = str(tmp_path / "secret")
    gradtide = [sys.executable, "-m", "gradtide"]
    subprocess.run([*gradtide, "secret", secret], check=True, capture_output=True)
    coordinator = ["coordinator", "tcp:10.77.0.2:7000"]
    server = ["serve", "tcp:10.77.0.2:7001", "--coordinator", "tcp:10.77.0.2:7000", "--name", "server-0"]
    with ExitStack() as stack:
        try:
            here, there = stack.enter_context(two_hosts("1gbit"))
        except ConfigError as error:
            pytest.skip(str(error))

        def start(*command):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        for role in (coordinator, server):
            started = start(*there, *gradtide, *role, "--secret-file", secret)
            assert "listens at" in started.stdout.readline()
        client = start(*here, sys.executable, "-c", CLIENT, secret)
        assert client.stdout.readline() == "ready\n"
        with cut_wire([here[-1], there[-1]]):
            said, _ = client.communicate("go\n", timeout=60)
    assert said.startswith("True server server-0 at tcp:10.77.0.2:7001 can't be reached for 1 s during push of 'w'")
