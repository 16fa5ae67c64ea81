"""Links between hosts: whatever the hosts, the operation, the type and the size, the bits are those of one host."""

from contextlib import ExitStack
from itertools import pairwise

import cases
import pytest
import torch
from cases import DTYPES, FLOATS, Case, check, group_of, reductions_of, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import Ranks, move

from gradtide.collective.groups.group import Group
from gradtide.collective.host.extents import Adding, Base, Extent
from gradtide.collective.links.operations import all_reduce, broadcast
from gradtide.errors import ConfigError, Mismatch
from gradtide.testing.hosts import several_hosts

OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1,), (1023,), (16_385,), (3, 21_847), (131_077,), (300_001,), (700_003,)]),
)
# The host of each rank. Where only the first host has several ranks, adding up by host is adding up by rank.
PLACES = {"two": [0, 1], "three": [0, 1, 2], "uneven": [0, 0, 1, 2], "mixed": [0, 1, 0, 2]}


def join(rank, size):
    cases._groups["cases", size] = Group.from_environment(timeout_s=60)


def leave(rank, size):
    cases._groups.pop(("cases", size)).close()


@pytest.fixture(scope="module")
def three_hosts():
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(several_hosts(3, ""))
        except ConfigError as error:
            pytest.skip(str(error))
        yield [command[-1] for command in inside]


@pytest.fixture(scope="module", params=PLACES)
def apart(request, three_hosts):
    """Ranks on two or three hosts, in a group."""
    where = PLACES[request.param]
    started = Ranks(len(where))
    started.run(move, len(where), [three_hosts[host] for host in where])
    started.run(join, len(where))
    yield started, where
    started.run(leave, len(where))
    started.close()


@st.composite
def _cases(draw, operation, exact):
    dtype = draw(st.sampled_from([d for d in DTYPES if not exact or not (d in FLOATS or d.is_complex)]))
    return Case(
        operation,
        # Torch rounds a product of complex numbers in a vector otherwise than one by itself: its bits depend on places.
        draw(st.sampled_from([r for r in reductions_of(dtype) if not (dtype.is_complex and r == "product")])),
        dtype,
        draw(SHAPES),
        draw(st.sampled_from(["plain", "plain", "strided", "shared"])),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 10_000)),
        draw(st.booleans()),
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_between_hosts_every_rank_gets_bit_for_bit_what_one_host_gives(apart, operation):
    ranks, where = apart
    scattered = where == PLACES["mixed"]  # its sums of floats are those of the hosts, in another order

    @settings(
        max_examples=25,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=_cases(operation, exact=scattered and operation in ("all_reduce", "reduce", "reduce_scatter")))
    def run(case):
        assert not any(ranks.run(check, len(where), case))

    run()


def cut_anywhere(rank, size, dtype, cuts):
    group, count = group_of(rank, size), 400_003
    whole = (torch.randn(count, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)
    pieces = whole.clone()
    for begin, end in pairwise([0, *cuts, count]):
        group.all_reduce(pieces[begin:end])
    for _ in range(3):  # the first one makes a plan, the others follow it
        assert same(group.all_reduce(whole.clone()), pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_bits_between_hosts_depend_neither_on_size_nor_on_place(apart, dtype):
    ranks, where = apart
    ranks.run(cut_anywhere, len(where), dtype, [1, 77, 5000, 30_000, 110_001])


def disagree(rank, size, other, count):
    group = group_of(rank, size)
    group.all_reduce(torch.ones(count))  # there is a plan for it now
    with pytest.raises(Mismatch, match=rf"float32\[({count}|3)\].*float32\[({count}|3)\]") as caught:
        group.all_reduce(torch.ones(3 if rank == other else count))
    assert group.all_reduce(torch.full((count,), float(rank))).eq(sum(range(size))).all()
    return str(caught.value)


@pytest.mark.parametrize("count", [100, 500_000])
def test_a_mismatch_is_the_same_error_for_all_and_leaves_the_links_clean(apart, count):
    """A large one: megabytes are on their way when it is found, and are read by nobody."""
    ranks, where = apart
    for other in range(len(where)):
        assert len(set(ranks.run(disagree, len(where), other, count))) == 1


@pytest.mark.quick
def test_a_large_all_reduce_moves_as_much_as_a_ring():
    for hosts in (2, 3, 7):
        size_bytes = 64 * 700 * hosts
        for me in range(hosts):
            found = all_reduce(me, hosts, *[Extent(Base.TENSOR, 0, size_bytes)] * 2, Adding(1, 1, 4))
            left = sum(part.first.size_bytes + part.second_bytes for part in found.parts)
            came = sum(part.arriving.size_bytes + part.result.size_bytes for part in found.parts)
            assert left == came == 2 * size_bytes * (hosts - 1) // hosts


@pytest.mark.quick
def test_no_host_of_a_large_broadcast_sends_it_more_than_twice():
    for hosts in (3, 7):
        size_bytes = 64 * 1000 * hosts
        for me in range(hosts):
            found = broadcast(me, hosts, 1, *[Extent(Base.TENSOR, 0, size_bytes)] * 2)
            left = sum(part.first.size_bytes + part.second_bytes for part in found.parts)
            came = sum(part.arriving.size_bytes + part.result.size_bytes for part in found.parts)
            assert left <= 2 * size_bytes
            assert came == (0 if me == 1 else size_bytes)
