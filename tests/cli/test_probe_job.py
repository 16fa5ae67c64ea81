"""`gradtide topology probe --job` under torchrun."""

import subprocess

from gradtide.topology.files import read_topology
from loaded_python import loaded_python


def test_a_job_started_by_torchrun_measures_its_own_links(tmp_path):
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", "gradtide"]
    probe = ["topology", "probe", "--job", "--seconds", "0.3", "--output", "job.toml"]
    done = subprocess.run(
        [loaded_python(), "-m", *command, *probe], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    topology = read_topology(tmp_path / "job.toml")
    assert [node.name for node in topology.nodes] == ["rank0", "rank1", "rank2"]
    assert len(topology.links) == 6
    assert all(link.bytes_per_s > 1e6 for link in topology.links)
    assert done.stdout.count("written to job.toml") == 1  # the first rank speaks for all


def test_without_a_launcher_it_says_how_to_start_one(tmp_path):
    command = [loaded_python(), "-m", "gradtide", "topology", "probe", "--job"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "gradtide: RANK is not set; start with torchrun, or use Group.join(name, rank, size)\n"
