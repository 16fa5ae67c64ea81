"""What a user gets wrong about a job on Ray is one line."""

import os
import socket
import sys
from importlib.metadata import version

import pytest
from jobs import RayRun

from gradtide.errors import ConfigError
from gradtide.launch.target import Target
from gradtide.ray.connecting import connect_to_ray, what_travels
from gradtide.ray.placing import ClusterNode, JobSize, share_out
from gradtide.ray.versions import Versions, check_versions

FOUR = [ClusterNode(f"id{i}", f"10.0.0.{i}", 4.0) for i in range(1, 5)]


@pytest.mark.quick
def test_workers_are_packed_and_servers_are_where_workers_are_few():
    shares = share_out(JobSize(8, servers=4, replicas=1, per_node=3), FOUR)
    assert [(share.workers, share.servers) for share in shares] == [(3, 1), (3, 1), (2, 1), (0, 1)]
    assert [share.bundle() for share in shares] == [{"CPU": 4}, {"CPU": 4}, {"CPU": 3}, {"CPU": 1}]
    shares = share_out(JobSize(6), FOUR)
    assert [share.workers for share in shares] == [4, 2]
    shares = share_out(JobSize(2, servers=5, per_node=2), FOUR)
    assert [(share.workers, share.servers) for share in shares] == [(2, 1), (0, 2), (0, 1), (0, 1)]


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (JobSize(5, per_node=1), "5 workers, 1 a node need 5 nodes, and the cluster has 4"),
        (JobSize(5, servers=5, replicas=1), "5 workers, 3 a node, and 5 servers with 1 replica need 5 nodes, and the"),
        (JobSize(5, per_node=5), "5 workers and 0 servers on a node need 5 CPUs, and 10.0.0.1 has 4; add nodes"),
        (JobSize(1, gpus_each=1), "1 worker and 0 servers on a node need 1 GPU, and 10.0.0.1 has 0; add nodes"),
    ],
)
def test_a_cluster_that_is_too_small_is_told_what_it_lacks(size, line):
    with pytest.raises(ConfigError, match=line):
        share_out(size, FOUR)


def test_versions_that_differ_are_named_with_their_node():
    mine = Versions("0.1.0", "2.13.0", "3.11")
    check_versions(mine, "worker 0", {"worker 1": mine})
    with pytest.raises(
        ConfigError, match=r"worker 1 has torch 2.12.0, and worker 0 has torch 2.13.0; install the same"
    ):
        check_versions(mine, "worker 0", {"worker 1": Versions("0.1.0", "2.12.0", "3.11")})


def test_without_ray_the_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'gradtide\[ray\]'"):
        connect_to_ray("127.0.0.1:1", str(tmp_path))


def test_an_address_where_nobody_listens_is_named(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"):
            connect_to_ray(address, str(tmp_path))
    for wrong in ("ray://127.0.0.1:10001", "somewhere"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            connect_to_ray(wrong, str(tmp_path))


def test_what_travels_is_the_folder_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    inside = Target("below/train.py", ("--lr", "1"))
    assert what_travels(inside) == (str(tmp_path / "here"), inside)
    assert what_travels(Target("../train.py")) == (str(tmp_path), Target("train.py"))
    assert what_travels(Target("pkg.train", (), True)) == (str(tmp_path / "here"), Target("pkg.train", (), True))


def test_a_folder_that_a_node_does_not_see_and_a_script_that_did_not_travel_are_named(tmp_path, monkeypatch):
    agents = pytest.importorskip("gradtide.ray.agents", reason="Ray is not installed")
    monkeypatch.chdir(tmp_path)
    actor = agents.AgentActor()
    with pytest.raises(ConfigError, match=r"node a has no train.py in the folder that Ray has brought there"):
        actor.run(agents.AgentOrders("tcp:127.0.0.1:1", Target("train.py")), b"s" * 32, "a", 1)
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError, match="node a does not see /nfs as the driver does"):
        actor.run(agents.AgentOrders("tcp:127.0.0.1:1", Target("train.py"), "/nfs", "marker"), b"s" * 32, "a", 1)


@pytest.mark.slow
def test_on_a_cluster_every_mistake_is_one_line(cluster, tmp_path):
    (tmp_path / "train.py").write_text("print('it ran')")

    def line_of(*arguments, **variables):
        run = RayRun(cluster, *arguments, folder=tmp_path, **variables)
        assert run.end() == 2, run.text
        assert len(run.lines) == 1, run.text
        return run.text

    assert "need 5 nodes, and the cluster has 4" in line_of("--workers", 5, "--workers-per-node", 1, "train.py")
    (tmp_path / ".rayignore").write_text("train.py\n")
    assert "has no train.py in the folder that Ray has brought there" in line_of("--workers", 1, "train.py")
    (tmp_path / ".rayignore").unlink()
    (tmp_path / "data").write_bytes(os.urandom(9 << 20))
    found = line_of("--workers", 1, "train.py", RAY_max_grpc_message_size=str(8 << 20))
    assert "is 9.00MiB, where Ray takes 8.00MiB" in found
    (tmp_path / "data").unlink()
    cluster.tell("unplug 3")
    try:
        assert "node 10.77.0.4 of the Ray cluster can't be reached" in line_of("--workers", 1, "train.py")
    finally:
        cluster.tell("plug 3")


@pytest.fixture
def odd_node(cluster):
    """Node 3 is started as its function is told, and as it was for who comes next."""

    def start(hidden, path):
        cluster.tell(f"odd 3 {hidden} {path}")
        cluster.settle()

    cluster.tell("kill 3")
    yield start
    cluster.tell("kill 3")
    cluster.tell("start 3")
    cluster.settle()


@pytest.mark.slow
def test_a_node_that_does_not_see_the_checkpoints_or_has_another_torch_is_named(cluster, odd_node, tmp_path):
    (tmp_path / "train.py").write_text("print('it ran')")
    older = tmp_path / "older" / "torch-2.12.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    kept = tmp_path / "checkpoints"
    kept.mkdir()
    odd_node(kept, tmp_path / "older")
    four = "--workers", 4, "--workers-per-node", 1
    run = RayRun(cluster, *four, "--checkpoints", kept, "train.py", folder=tmp_path)
    assert run.end() == 2, run.text
    assert run.lines == [
        f"gradtide: node 10.77.0.4 does not see {kept} as the driver does; checkpoints need a folder that all nodes "
        "share (NFS, say)"
    ]
    assert not list(kept.iterdir())
    run = RayRun(cluster, *four, "train.py", folder=tmp_path)
    assert run.end() == 2, run.text
    assert run.lines == [
        f"gradtide: node 10.77.0.4 can't be in the job: torch 2.12.0 there and {version('torch')} at the head; install "
        "the same on all nodes"
    ]


@pytest.mark.slow
def test_a_node_whose_gradtide_knows_no_ray_is_named(cluster, odd_node, tmp_path):
    (tmp_path / "train.py").write_text("print('it ran')")
    (tmp_path / "older" / "gradtide").mkdir(parents=True)
    (tmp_path / "older" / "gradtide" / "__init__.py").touch()
    (tmp_path / "empty").mkdir()
    odd_node(tmp_path / "empty", tmp_path / "older")
    four = "--workers", 4, "--workers-per-node", 1
    run = RayRun(cluster, *four, "train.py", folder=tmp_path)
    assert run.end() == 2, run.text
    assert run.lines == [
        "gradtide: node 10.77.0.4 lacks what the job needs (No module named 'gradtide.ray'); install the same on all "
        "nodes"
    ]
