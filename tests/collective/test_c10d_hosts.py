"""torch.distributed over gradtide on two hosts: network namespaces, as in test_hosts.py."""

import contextlib
import io
import os

import c10d_host_rank
import pytest


def program(rank, size, topology):
    """Runs it in this process; returns what it prints."""
    os.environ |= {"GRADTIDE_TOPOLOGY": topology} if topology else {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        c10d_host_rank.main()
    return said.getvalue()


@pytest.mark.parametrize("given", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_runs_on_two_hosts_as_on_one_by_itself_or_on_links_as_given(far, given):
    name = "ethernet-cluster" if given else "nominal"
    for said in far.run(program, 4, "ethernet-cluster:2x2@1" if given else ""):
        assert "mismatch: the hosts ask for different things" in said
        assert f"on one host: False; planned on {name}" in said
