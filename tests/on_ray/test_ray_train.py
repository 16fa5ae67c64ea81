"""gradtide.ray.GradtideConfig as torch_config of Ray Train's TorchTrainer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray_cluster import QUIET

from gradtide.errors import ConfigError

LIMIT_S = 900.0
DRIVER = Path(__file__).parent / "in_ray_train.py"


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "kill"), [(2, "no"), (2, "yes"), (0, "yes")])
def test_workers_on_two_nodes_train_as_one_process_does(cluster, tmp_path, servers, kill):
    command = [*cluster.inside(0), sys.executable, DRIVER, cluster.address, tmp_path, str(servers), kill]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={**QUIET, "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["far"] < 1e-10
    assert found["hosts"] == 2
    assert found["died"] == (kill == "yes")
    assert found["checkpoint"] == "step-00000050"
    assert found["kept"] == ["step-00000040", "step-00000050"]


@pytest.mark.parametrize(("servers", "replicas", "words"), [(-1, 0, "0 or more"), (1, 1, "need 2 servers")])
def test_numbers_that_make_no_sense_are_refused_before_anything_starts(servers, replicas, words):
    config = pytest.importorskip("gradtide.ray.config", reason="Ray is not installed")
    with pytest.raises(ConfigError, match=words):
        config.GradtideConfig(servers=servers, replicas=replicas)
