"""Several pytests on one list of tests: each takes the next file when it has done one. A plugin of pytest's.

`pytest --lane FILE` in each of them, with the same selection: FILE counts how many have been taken. The longest come
first, so that no lane ends long before another; files that need the same thing of the machine are taken together.
"""

import os
from collections.abc import Iterator
from itertools import chain, pairwise

import pytest

from clock import IN_LANES

TESTS = "tests/"
# Taken in this order; all others, which are short, after them in the order of their names.
LONGEST = (
    "sync/test_true_to_pytorch.py",
    "sync/test_random_programs.py",
    "test_documented.py",
    "collective/test_torch_suite.py",
    "testing/test_chaos.py",
    "examples/test_examples.py",
    "sync/test_elastic.py",
    "collective/test_far_failures.py collective/test_hosts.py collective/test_c10d_hosts.py",  # one pair of hosts
    "sync/test_local_kills.py",
    "sync/test_local_elastic.py",
    "train/test_together.py",
    "observe/test_traced_runs.py",
    "launch/test_fresh_start.py",
    "train/test_frugal_fit.py",
    "train/test_losses.py",
    "sync/test_data_parallel.py",
    "sync/test_growing.py",
    "store/test_compressed_keys.py",
    "train/test_resume.py",
    "testing/test_comings.py",
    "cli/test_cli.py",
    "collective/test_host_links.py",
    "schedule/test_properties.py",
    "collective/test_group.py",
    "collective/test_kernels.py",
    "train/test_compressed_resume.py",
    "sync/test_compressed_elastic.py",
    "testing/test_replication.py",
    "testing/test_compressed_seeds.py",
    "train/test_dying_workers.py",
    "on_ray/test_ray_run.py",
    "train/test_balanced_fit.py",
    "collective/test_link_failures.py",
    "store/test_failover.py",
    "store/test_processes.py",
    "store/test_scaling.py",
    "collective/test_closing.py",
    "store/test_compressed_conservation.py",
    "collective/test_encrypted_failures.py",
    "train/test_local_resume.py",
    "sync/test_shuffled.py",
    "sync/test_sharded_batches.py",
    "sync/test_servers.py",
    "store/test_weather.py",
    "collective/test_c10d_failures.py",
    "parallel/test_equality.py",
    "launch/test_run.py",
    "test_loaded_python.py",
    "store/test_server.py",
    "testing/test_comings_and_goings.py",
    "schedule/test_packed_trees.py",
    "store/test_updates.py",
    "bench/test_staleness.py",
    "sync/test_far_programs.py",
    "collective/test_waits.py",
    "test_suite.py",
    "test_scripts.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", metavar="FILE", help="take one test file after the other, beside others with this FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--lane") is not None:
        os.environ[IN_LANES] = "1"  # for this process and those that tests start


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    counter = session.config.getoption("--lane")
    if counter is None or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop, which also says what can't be collected
    for item, following in pairwise(chain(taken(counter, in_files(session.items)), [None])):
        assert item is not None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True


def in_files(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each group of files, longest first."""
    rank = {TESTS + name: number for number, names in enumerate(LONGEST) for name in names.split()}
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("::")[0]
        groups.setdefault(rank.get(name, name), []).append(item)
    first = [groups[number] for number in range(len(LONGEST)) if number in groups]
    return first + [group for key, group in groups.items() if isinstance(key, str)]


def taken(counter: str, groups: list[list[pytest.Item]]) -> Iterator[pytest.Item]:
    """What falls to this lane, asked for a file at a time."""
    while (number := _next_number(counter)) < len(groups):
        yield from groups[number]


def _next_number(counter: str) -> int:
    """How many were taken before: an append and where it ended are one step, whoever else appends."""
    file = os.open(counter, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b".")
        return os.lseek(file, 0, os.SEEK_CUR) - 1
    finally:
        os.close(file)
