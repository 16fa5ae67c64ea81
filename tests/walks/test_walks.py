"""The three walks of docs/layout.md, taken with a profile hook in every process."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gradtide.store.local.roles import Role

HERE = Path(__file__).parent
WALKS = (HERE.parent.parent / "docs/layout.md").read_text().split("# Three walks")[1].split("# The other ways")[0]
EVERYWHERE = re.findall(r"`([a-z0-9_/]+\.py)`", WALKS.split("## ")[0])
WAIT_S = 120


def documented(heading: str) -> list[str]:
    """The files below a heading, in order."""
    section = WALKS.split(f"### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"`([a-z0-9_/]+\.py)`", section)


def taken(path: Path, thread: str = "all") -> list[str]:
    walk = json.loads(path.read_text()).get(thread, [])
    return [file for file in walk if file not in EVERYWHERE]


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
    processes = [
        subprocess.Popen([sys.executable, HERE / "role.py", folder, msgspec.json.encode(role)], stdout=subprocess.PIPE)
        for role in roles
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == b"listening\n"
        subprocess.run([sys.executable, HERE / "push.py", folder, coordinator], check=True, timeout=WAIT_S)
        for process in processes:
            process.send_signal(2)
            assert process.wait(WAIT_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
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
    subprocess.run([sys.executable, HERE / "plan.py", tmp_path], check=True, timeout=WAIT_S, stdout=subprocess.DEVNULL)
    assert taken(tmp_path / "planner.json") == documented("The planner")
