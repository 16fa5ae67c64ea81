"""What stands in the way on a machine, and whether others can be reached from it."""

import socket

import pytest

from gradtide.cli.doctor.command import _untested
from gradtide.cli.doctor.limits import Limits, _cores_limit, _memory_limit, busy_line, what_stands_in_the_way
from gradtide.cli.doctor.reaching import reach
from gradtide.errors import ConfigError

GIB = 2**30
FINE = {"kernel": (6, 1), "shared_memory_bytes": 8 * GIB, "open_files": 65536}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, None),
        ({"linux": False}, "need Linux"),
        ({"kernel": (3, 10)}, "Linux 3.10 is older"),
        ({"shared_memory_bytes": 64 << 20}, "docker run --shm-size"),
        ({"memory_limit_bytes": 2 * GIB}, "may use 2.0 of 16.0 GiB"),
        ({"cores_limit": 1.5}, "may use 1.5 of 8 cores"),
        ({"open_files": 256}, "ulimit -n"),
        ({"load": 7.0}, "busy (load 7.0 on 8 cores)"),
    ],
)
def test_each_obstacle_is_one_line_that_says_what_to_do(limits, words):
    lines = list(what_stands_in_the_way(Limits(**(FINE | limits)), cores=8, memory_bytes=16 * GIB))
    assert len(lines) == (words is not None)
    assert all(words in line for line in lines)


def test_a_torch_that_no_test_ran_under_is_named_with_one_that_did():
    assert _untested("2.13.0+cpu") == _untested("2.15.3+cu132") == []
    for version, words in (
        ("2.12.1", "too old: pip install"),
        ("2.16.0", "newer than any"),
        ("git", "nothing is known"),
    ):
        (line,) = _untested(version)
        assert "tested with torch 2.13.0, 2.14.1 and 2.15.0" in line
        assert f"this is {version}" in line
        assert words in line


def test_a_quiet_machine_is_not_called_busy():
    assert busy_line(0.3, 1) == ""
    assert busy_line(1.9, 8) == ""
    assert busy_line(3.0, 8)


def test_a_containers_limits_are_read_of_both_kinds_of_cgroups(tmp_path):
    new, old, none = tmp_path / "new", tmp_path / "old", tmp_path / "none"
    for folder in (new, old / "memory", old / "cpu", none):
        folder.mkdir(parents=True)
    (new / "memory.max").write_text("1073741824\n")
    (new / "cpu.max").write_text("150000 100000\n")
    (old / "memory/memory.limit_in_bytes").write_text("536870912\n")
    (old / "cpu/cpu.cfs_quota_us").write_text("200000\n")
    (old / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (none / "memory.max").write_text("max\n")
    (none / "cpu.max").write_text("max 100000\n")
    v1 = "4:memory:/\n1:cpu,cpuacct:/\n0::/\n"
    for memberships, folder, memory, cores in (("0::/\n", new, GIB, 1.5), (v1, old, GIB // 2, 2.0), ("", none, 0, 0.0)):
        assert _memory_limit(memberships, folder) == memory
        assert _cores_limit(memberships, folder) == cores


@pytest.mark.parametrize(("line", "under"), [("0::", ""), ("4:memory:", "memory")])
def test_the_limit_of_a_job_is_found_where_its_cgroup_is_or_at_a_containers_root(tmp_path, line, under):
    name = "memory.limit_in_bytes" if under else "memory.max"
    job = tmp_path / under / "slurm" / "job_7"
    (job / "step_0").mkdir(parents=True)
    (job / name).write_text(f"{GIB}\n")
    (tmp_path / under / name).write_text(f"{8 * GIB}\n")
    assert _memory_limit(f"{line}/slurm/job_7/step_0\n", tmp_path) == GIB
    assert _memory_limit(f"{line}/of/the/host\n", tmp_path) == 8 * GIB


def test_a_host_that_answers_nothing_is_not_reached():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for waiting in (first, second):  # no more are let in
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        _, there, what = reach(f"127.0.0.1:{full.getsockname()[1]}", timeout_s=0.2)
    assert not there
    assert what == "no answer within 0.2 s: a firewall, or a host that is off"


def test_a_host_that_refuses_is_reached_and_a_name_that_is_none_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach(f"127.0.0.1:{port}")[1:] == (True, "reached; something listens there")
    assert reach(f"127.0.0.1:{port}")[1:] == (True, "reached; nothing listens there yet")
    assert reach("no.such.host.invalid:7000")[1] is False
    with pytest.raises(ConfigError, match="write host:port"):
        reach("node2")
