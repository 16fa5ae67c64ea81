"""The three walks of docs/layout.md, taken with a profile hook in every process."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plan import make_plan
from push import push_once
from ranks import process_context
from role import live

from gradtide.store.local.roles import Role

HERE = Path(__file__).parent
LAYOUT = (HERE.parent.parent / "docs/layout.md").read_text()
WALKS = LAYOUT.split("\n## Three walks\n")[1].split("\n## The other ways\n")[0]
EVERYWHERE = re.findall(r"`([a-z0-9_/]+\.py)`", WALKS.split("## ")[0])
WAIT_S = 120


def documented(heading: str) -> list[str]:
    """The files below a heading, in order."""
    section = WALKS.split(f"#### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"`([a-z0-9_/]+\.py)`", section)


def taken(path: Path, thread: str = "all") -> list[str]:
    walk = json.loads(path.read_text()).get(thread, [])
    return [file for file in walk if file not in EVERYWHERE]


def run_to_its_end(function, *arguments):
    """In a process of its own, by fork from one that has everything loaded."""
    process = process_context.Process(target=function, args=arguments, daemon=True)
    process.start()
    process.join(WAIT_S)
    code = process.exitcode
    process.kill()
    process.join()
    process.close()
    assert code == 0


@pytest.fixture(scope="module")
def push(tmp_path_factory):
    folder = tmp_path_factory.mktemp("push")
    coordinator = f"unix:{folder}/coordinator"
    roles = [Role(role="coordinator", name="coordinator", address=coordinator)]
    for i in range(2):
        address = f"unix:{folder}/server-{i}"
        roles.append(
            Role(role="server", name=f"server-{i}", address=address, coordinator=coordinator, expected=2, replicas=1)
        )
    listening = [process_context.Pipe() for _ in roles]
    processes = [
        process_context.Process(target=live, args=(folder, role, there), daemon=True)
        for role, (_, there) in zip(roles, listening, strict=True)
    ]
    try:
        for process, (here, _) in zip(processes, listening, strict=True):
            process.start()
            assert here.poll(WAIT_S)
        run_to_its_end(push_once, folder, coordinator)
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
            process.join(WAIT_S)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for here, there in listening:
            here.close()
            there.close()
    primary = json.loads((folder / "primary").read_text())
    return folder, primary, "server-0" if primary == "server-1" else "server-1"


def test_a_push_with_a_replica_takes_the_documented_walk_on_the_client(push):
    assert taken(push[0] / "client.json") == documented("The client")


def test_a_push_with_a_replica_takes_the_documented_walk_on_the_primary(push):
    assert taken(push[0] / f"{push[1]}.json") == documented("The primary")


def test_a_push_with_a_replica_takes_the_documented_walk_on_the_replica(push):
    assert taken(push[0] / f"{push[2]}.json") == documented("The replica")


def test_a_gradient_by_all_reduce_takes_the_documented_walk(tmp_path):
    command = [sys.executable, "-m", "gradtide", "run", "--workers", "2", HERE / "gradient.py", tmp_path]
    subprocess.run(command, check=True, timeout=WAIT_S)
    for rank in range(2):
        walks = tmp_path / str(rank) / "worker.json"
        assert taken(walks, "MainThread") == documented("A worker's main thread")
        assert taken(walks, "gradtide-lane") == documented("A worker's background thread")
        assert set(json.loads(walks.read_text())) == {"MainThread", "gradtide-lane"}


def test_a_plan_takes_the_documented_walk(tmp_path):
    run_to_its_end(make_plan, tmp_path)
    assert taken(tmp_path / "planner.json") == documented("The planner")
