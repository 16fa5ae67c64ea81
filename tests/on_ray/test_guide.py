"""docs/ray.md, tried from the page: its commands and its program, with this cluster's address and a folder of ours. And
README's line that starts its first example on a cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ray_cluster import QUIET

from documented_reader import first_program, lines_on_machines

PAGE = (Path(__file__).parents[2] / "docs/ray.md").read_text()
SCRIPT = "from gradtide import Group\ngroup = Group.from_environment()\nprint(f'{group.rank} of {group.size}')\n"


def on_the_head(cluster, command, folder):
    programs = os.path.dirname(sys.executable)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*cluster.inside(0), "sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, **QUIET, "PATH": path},
    )  # fmt: skip


@pytest.mark.slow
def test_the_commands_of_the_guide_start_a_job_and_see_the_cluster(cluster, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = re.search(r"\$ (gradtide run --engine ray .*)", PAGE)[1].replace("10.0.0.1:6379", cluster.address)
    done = on_the_head(cluster, command, tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(8):
        assert f"[{rank}] {rank} of 8" in done.stdout.splitlines()
    bench = re.search(r"^    (gradtide bench launch .*)", PAGE, re.MULTILINE)[1].replace(
        "10.0.0.1:6379", cluster.address
    )
    done = on_the_head(cluster, f"{bench} --rounds 1 --output {tmp_path}/bench.json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Ray actors that import torch" in done.stdout


@pytest.mark.slow
def test_the_program_of_the_guide_trains_in_ray_train(cluster, tmp_path):
    program = re.search(r"```python\n(import ray.train.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "program.py").write_text(program.replace("/shared/runs", str(tmp_path / "runs")))
    done = on_the_head(cluster, f"RAY_ADDRESS={cluster.address} python program.py", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"Checkpoint\(filesystem=local, path=.*/runs/first/step-00000\d\d0-", done.stdout), done.stdout


@pytest.mark.slow
def test_the_line_of_the_readme_starts_its_first_example_on_two_nodes(cluster, tmp_path):
    (tmp_path / "train.py").write_text(first_program("README.md"))
    ((_, command),) = shown = lines_on_machines("README.md", "gradtide run --engine ray")
    assert lines_on_machines("docs/launch.md", "gradtide run --engine ray") == shown
    done = on_the_head(cluster, f"RAY_ADDRESS={cluster.address} {command}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"2 workers \(1 on 10\.77\.0\.\d, 1 on 10\.77\.0\.\d\)", done.stdout + done.stderr)
    last = re.findall(r"^\[([01])\] +5 +(.*)$", done.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in last) == ["0", "1"]
    assert len({epoch for _, epoch in last}) == 1
