"""Lightning's Trainer over gradtide beside its DDP over Gloo: every parameter and every logged metric is the same."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradtide.errors import ConfigError

HERE = Path(__file__).parent


def run(command, timeout_s=300):
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_training_with_lightning_on_two_workers_equals_ddp_over_gloo(tmp_path):
    """By name and as an object; clipping, accumulation, a scheduler, bf16, resuming, averaging, optimizers by hand;
    aliases of parameters, and hooks that change them."""
    done = run(["gradtide", "run", "--workers", 2, HERE / "lightning_runs.py", tmp_path])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 2
    assert done.stdout.count(": differs by") == 18


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torch.distributed.run", "--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
        [],
    ],
    ids=["torchrun", "plain python"],
)
def test_it_trains_the_same_however_it_is_started(launcher, tmp_path):
    script = [HERE / "lightning_runs.py", tmp_path, "plain", "clipped and accumulated", "resumed"]
    if launcher:
        done = run([*launcher, *script])
    else:
        done = subprocess.run([sys.executable, *map(str, script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == (2 if launcher else 1)


@pytest.mark.slow
def test_a_job_that_may_lose_workers_is_refused_in_one_line(tmp_path):
    done = run(["gradtide", "run", "--workers", 2, "--min-workers", 1, HERE / "lightning_runs.py", tmp_path, "plain"])
    assert done.returncode != 0
    assert "start it without --min-workers" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_worker_that_fails_ends_the_training_and_is_named(tmp_path):
    done = run(["gradtide", "run", "--workers", 2, HERE / "lightning_runs.py", tmp_path, "failing"])
    assert done.returncode == 1
    assert "worker 1 failed with exit code 1: ValueError: boom (lightning_runs.py:" in done.stderr
    assert re.search(r"worker 0 fell after it: (Torch)?PeerLost", done.stderr)


@pytest.mark.slow
def test_the_benchmark_has_lightning_over_gradtide_and_over_gloo_in_one_table(tmp_path):
    options = ["--model", "lenet", "--trainer", "lightning", "--rounds", 1, "--steps", 2, "--batch-size", 8]
    done = run(["gradtide", "bench", "train", *options, "--output", tmp_path / "found.json", "--json"], 600)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [row["name"] for row in json.loads(done.stdout)]
    assert names == ["Lightning, DDP over Gloo", "Lightning, DDP over gradtide", "Lightning, gradtide's strategy"]


@pytest.mark.quick
def test_a_missing_extra_is_one_line_that_names_the_pip_command(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "gradtide.lightning", raising=False)
    with pytest.raises(ConfigError, match=r"^.* needs Lightning: pip install 'gradtide\[lightning\]'$"):
        import gradtide.lightning  # noqa: F401
