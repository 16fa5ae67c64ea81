"""Two workers on two hosts that do all of a benchmark between them: worker 0 says where they are, and writes a file."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gradtide.bench.contender import READY_S, ContenderFailed
from gradtide.processes.ready import can_read
from gradtide.testing.hosts import ADDRESSES, INTERFACES
from gradtide.transport.keys import make_secret_file

__all__ = ["Hosts", "run_pair", "stores_on"]

Hosts = tuple[list[str], list[str]]  # what comes before a command, to run it there
_END_S = 10.0


def run_pair(hosts: Hosts, module: str, settings: object, port: int, tell: Callable[[str], None]) -> Any:
    """`python -m MODULE SETTINGS OUTPUT` on each, and what came to stand in OUTPUT; both are JSON."""
    with ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-"))) / "output.json"
        command = [sys.executable, "-m", module, json.dumps(settings), str(output)]
        processes = []
        for rank, host in enumerate(hosts):
            told = ["env", f"RANK={rank}", "WORLD_SIZE=2", f"MASTER_ADDR={ADDRESSES[0]}", f"MASTER_PORT={port}"]
            told += ["LOCAL_RANK=0", f"GLOO_SOCKET_IFNAME={INTERFACES[rank]}", "OMP_NUM_THREADS=1"]
            process = subprocess.Popen(
                [*host, *told, *command], stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            stack.callback(_end, process)
            processes.append(process)
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            tell(line.strip())
        codes = [process.wait() for process in processes]
        if any(codes):
            raise ContenderFailed(f"a worker ended with exit code {max(codes)}; its messages are above")
        return json.loads(output.read_text())


@contextmanager
def stores_on(hosts: Hosts, ports: Sequence[int]) -> Iterator[list[tuple[str, str]]]:
    """For each port a store, with its coordinator on the first host and a server on each: its address, and the secret's
    file. Not encrypted, as collectives are not."""
    gradtide, addresses = [sys.executable, "-m", "gradtide"], [f"tcp:{ADDRESSES[0]}:{port}" for port in ports]
    with ExitStack() as stack:
        secret = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")) + "/secret"
        make_secret_file(Path(secret))
        common = ["--secret-file", secret, "--insecure-network"]
        _wait_until_ready(
            [_start(stack, [*hosts[0], *gradtide, "coordinator", address, *common]) for address in addresses]
        )
        servers = []
        for port, address in zip(ports, addresses, strict=True):
            for number, host in enumerate(hosts):
                here = f"tcp:{ADDRESSES[number]}:{port + 1}"
                named = ["--coordinator", address, "--name", f"server-{number}", "--servers", "2"]
                servers.append(_start(stack, [*host, *gradtide, "serve", here, *named, *common]))
        _wait_until_ready(servers)
        yield [(address, secret) for address in addresses]


def _start(stack: ExitStack, command: Sequence[str]) -> "subprocess.Popen[str]":
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(command, stdin=quiet, stdout=pipe, text=True, start_new_session=True)
    stack.callback(_end, process)
    return process


def _wait_until_ready(processes: Sequence["subprocess.Popen[str]"]) -> None:
    for process in processes:
        assert process.stdout is not None
        if not can_read([process.stdout], READY_S):
            raise ContenderFailed(f"a process of the store did not listen within {READY_S:.0f} s")
        said = process.stdout.readline()
        if "listens at" not in said:
            raise ContenderFailed(f"a process of the store said {said.strip()!r}; its messages are above")


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait(_END_S)
    assert process.stdout is not None
    process.stdout.close()
