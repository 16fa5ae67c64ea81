"""A Ray cluster on this machine: a head and nodes, each in a network namespace of its own, so that they are real hosts.

`python ray_cluster.py NODES` keeps one until its standard input ends, and then everything of it is gone, however its
parent went. It writes one line of JSON when all nodes are up, and one for each command: `kill N`, `start N`,
`unplug N`, `plug N`, and `odd N FOLDER PATH`, which starts a node that sees nothing of what others see in FOLDER, and
whose Python finds in PATH what it would find elsewhere on others. `Cluster` is what tests hold of it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gradtide.errors import ConfigError
from gradtide.processes.forking import become_reaper
from gradtide.processes.ready import can_read
from gradtide.testing.hosts import ADDRESSES, plug, several_hosts, unplug

PORT = 6379
READY_S = 120.0
STORE_BYTES = 80 << 20  # the least that Ray takes
ALIVE = """
import sys, time
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
while sum(node.state == 0 for node in client.get_all_node_info().values()) != int(sys.argv[2]):
    time.sleep(0.5)
"""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else it depends on what earlier programs have left in the user's home
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_enable_worker_prestart": "0",  # a process for each CPU that nobody has asked for
    "RAY_prestart_worker_first_driver": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # four nodes on one machine, which others use, too: none of them is to judge
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_DEDUP_LOGS": "0",
}


class Cluster:
    """As tests see it. `inside(N)` goes before a command to run it on that node."""

    def __init__(self, nodes: int = 4, cpus: int = 4) -> None:
        if " " in sys.executable:
            raise ConfigError("Ray starts no process from a folder that has a space in its name")
        command = [sys.executable, __file__, str(nodes), str(cpus)]
        self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.names: list[str] = self._read()["names"]
        self.address = f"{ADDRESSES[0]}:{PORT}"

    def inside(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[node]]

    def tell(self, command: str) -> dict[str, Any]:
        assert self._keeper.stdin is not None
        print(command, file=self._keeper.stdin, flush=True)
        return self._read()

    def processes(self, node: int) -> set[int]:
        return pids_in(self.names[node])

    def settle(self) -> None:
        """Until Ray believes in as many nodes as there are: it takes its time to forget one that was killed."""
        command = [*self.inside(0), sys.executable, "-c", ALIVE, self.address, str(len(self.names))]
        subprocess.run(command, check=True, timeout=READY_S, env=dict(os.environ) | QUIET)

    def _read(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None
        if not can_read([self._keeper.stdout], READY_S):
            self.close()
            raise TimeoutError(f"the cluster did not answer within {READY_S:g} s")
        line = self._keeper.stdout.readline()
        answer: dict[str, Any] = json.loads(line or '{"error": "the cluster is gone"}')
        if "error" in answer:
            self.close()
            raise ConfigError(answer["error"])
        return answer

    def close(self) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()


def pids_in(name: str) -> set[int]:
    found = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    return {int(pid) for pid in found.stdout.split()}


class Keeper:
    """Starts and ends raylets."""

    def __init__(self, names: list[str], cpus: int, folder: str) -> None:
        self.names, self.cpus, self.folder = names, cpus, folder

    def begin(self, node: int, hidden: str = "", path: str = "") -> subprocess.Popen[bytes]:
        """Ray's own command, which ends when that node is up."""
        head = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if node == 0
            else [f"--address={ADDRESSES[0]}:{PORT}"]
        )
        own = [f"--node-ip-address={ADDRESSES[node]}", f"--temp-dir={self.folder}/{node}"]
        few = [f"--num-cpus={self.cpus}", f"--object-store-memory={STORE_BYTES}"]
        program = [sys.executable, "-m", "ray.scripts.scripts", "start"]
        if hidden:  # `ip netns exec` has given it mounts of its own
            program = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', hidden, *program]
        variables = dict(os.environ) | QUIET
        if path:
            variables["PYTHONPATH"] = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(f"{self.folder}/{node}.log", "wb") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.names[node], *program, *head, *own, *few, "--disable-usage-stats"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
            )

    def start(self, nodes: list[int], *odd: str) -> None:
        for node, process in [(node, self.begin(node, *odd)) for node in nodes]:
            if process.wait(READY_S):
                raise ConfigError(f"node {node} did not start: {Path(f'{self.folder}/{node}.log').read_text()[-2000:]}")

    def kill(self, node: int) -> None:
        """Until nothing is left there: one that was about to start may be there only now."""
        deadline_s = time.monotonic() + 10
        while (left := pids_in(self.names[node])) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            bury()
        shutil.rmtree(f"{self.folder}/{node}", ignore_errors=True)

    def obey(self, command: str) -> dict[str, Any]:
        verb, *rest = command.split()
        if verb == "odd":
            self.start([int(rest[0])], *rest[1:])
            return {}
        nodes, at_s = [int(text) for text in rest], time.monotonic()
        if verb == "start":
            self.start(nodes)
        for node in nodes:
            if verb == "kill":
                self.kill(node)
            elif verb == "unplug":
                unplug(self.names, node)
            elif verb == "plug":
                plug(self.names, node)
        return {"at_s": at_s}  # when it began to


def bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def keep(nodes: int, cpus: int) -> None:
    become_reaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = tempfile.mkdtemp(prefix="gt", dir="/tmp")  # short: sockets lie in it
    try:
        with several_hosts(nodes, "") as hosts:
            keeper = Keeper([host[-1] for host in hosts], cpus, folder)
            try:
                keeper.start([0])
                keeper.start(list(range(1, nodes)))
                print(json.dumps({"names": keeper.names}), flush=True)
                for line in sys.stdin:
                    print(json.dumps(keeper.obey(line)), flush=True)
            finally:
                for node in range(nodes):
                    keeper.kill(node)
    except ConfigError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(int(sys.argv[1]), int(sys.argv[2]))
