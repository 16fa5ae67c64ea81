"""Several connections between two ranks: where each gets a part of the wire measuring finds them, and nowhere else."""

import os
from itertools import pairwise

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from gradtide.collective.groups.group import Group
from gradtide.collective.host.extents import Adding, Base, Extent
from gradtide.collective.links.operations import all_gather, all_reduce, broadcast, stripes
from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.testing.hosts import limit_flows


def probed(rank, size):
    """How many flows a group has at first, after it has measured, and the next one after it has remembered."""
    found = []
    for _ in range(2):
        with Group.from_environment(timeout_s=30) as group:
            found.append(group.flows)
            text = group.explain(probe=True)
            found.append(group.flows)
            assert group.all_reduce(torch.full((100_001,), rank + 1.0)).eq(3).all()
            assert ("flows between each two ranks" in text) == (group.flows > 1)
    return found


def told(rank, size, flows):
    os.environ["GRADTIDE_FLOWS"] = flows[rank]
    with Group.from_environment(timeout_s=30) as group:
        group.explain(probe=True)
        assert group.all_reduce(torch.full((100_001,), rank + 1.0)).eq(3).all()
        with pytest.raises(ConfigError, match="9 flows make no sense; 1 to 8 do"):
            group.use_flows(9)
        return group.flows, group.exchange_model.flows


@pytest.mark.timing
def test_where_each_flow_gets_a_part_of_the_wire_measuring_finds_that_several_are_quicker():
    with namespaces(2) as hosts:
        try:
            limit_flows(hosts, "100mbit")
        except ConfigError as error:
            pytest.skip(str(error))
        started = Ranks(2)
        try:
            started.run(move, 2, hosts)
            one, two = started.run(probed, 2)
            assert one == two
            assert one[0] == one[2] == 1
            assert one[1] == one[3] > 1
        finally:
            started.close()


@pytest.mark.timing
def test_where_one_flow_has_all_of_the_wire_it_stays_one():
    with namespaces(2, "100mbit") as hosts:
        started = Ranks(2)
        try:
            started.run(move, 2, hosts)
            assert started.run(probed, 2) == [[1, 1, 1, 1]] * 2
        finally:
            started.close()


def test_all_ranks_have_as_many_flows_as_rank_0_was_told_to_make():
    with namespaces(2) as hosts:
        started = Ranks(2)
        try:
            started.run(move, 2, hosts)
            assert started.run(told, 2, ["3", ""]) == [(3, 3)] * 2
        finally:
            started.close()


@pytest.mark.quick
def test_stripes_are_all_of_an_exchange_and_both_ends_cut_alike():
    for hosts, flows, size_bytes in [(2, 3, 5_000_004), (3, 8, 1 << 20), (2, 4, 100_000), (4, 3, 16), (2, 8, 0)]:
        whole = Extent(Base.TENSOR, 0, size_bytes)
        rows = [Extent(Base.OUT, host * size_bytes, size_bytes) for host in range(hosts)]
        for build in (
            lambda me: all_reduce(me, hosts, whole, whole, Adding(1, 1, 4)),  # noqa: B023
            lambda me: all_gather(me, whole, rows),  # noqa: B023
            lambda me: broadcast(me, hosts, 0, whole, whole),  # noqa: B023
        ):
            cut = [stripes(build(me), flows) for me in range(hosts)]
            for me in range(hosts):
                _check_whole(build(me), cut[me])
            for me, other in [(0, 1), (hosts - 1, 0)]:
                for flow in range(flows):
                    sent, came = (_part(cut[a], flow, a, b) for a, b in ((me, other), (other, me)))
                    assert sent[:2] == came[2:]


def _check_whole(exchange, cut):
    for number, part in enumerate(exchange.parts):
        for name in ("first", "arriving", "result"):
            extent, found = getattr(part, name), [getattr(stripe.parts[number], name) for stripe in cut]
            assert sum(each.size_bytes for each in found) == extent.size_bytes
            if extent.base == Base.NONE:
                assert not any(each.offset for each in found)  # an address of 0: it is to be added up
            else:
                ends = sorted((each.offset, each.offset + each.size_bytes) for each in found if each.size_bytes)
                assert all(end == begin for (_, end), (begin, _) in pairwise(ends))
        assert sum(stripe.parts[number].second_bytes for stripe in cut) == part.second_bytes
    assert sum(stripe.share.mine.size_bytes for stripe in cut) == exchange.share.mine.size_bytes


def _part(cut, flow, me, other):
    """What leaves for another host over a flow, and what comes from it."""
    if flow >= len(cut):
        return 0, 0, 0, 0
    part = cut[flow].parts[other - (other > me)]
    return part.first.size_bytes, part.second_bytes, part.arriving.size_bytes, part.result.size_bytes


@pytest.mark.quick
def test_a_number_of_flows_that_makes_no_sense_is_refused(monkeypatch):
    for text in ("0", "9", "many"):
        monkeypatch.setenv("GRADTIDE_FLOWS", text)
        with pytest.raises(ConfigError, match="GRADTIDE_FLOWS must be a number from 1 to 8"):
            read_environment()
    monkeypatch.setenv("GRADTIDE_FLOWS", "3")
    assert read_environment().flows == 3
