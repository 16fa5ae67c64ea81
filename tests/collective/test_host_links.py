"""Links between hosts: whatever the hosts, the operation, the type and the size, the bits are those of one host."""

from functools import cache, reduce
from itertools import pairwise

import cases
import pytest
import torch
from cases import DTYPES, FLOATS, Case, check, group_of, reductions_of, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from namespaces import namespaces
from ranks import Ranks, move

from gradtide.collective.groups.group import Group
from gradtide.collective.host.extents import Adding, Base, Extent
from gradtide.collective.links import row_stages, stages
from gradtide.collective.links.operations import all_reduce, broadcast
from gradtide.collective.links.parts import Exchange
from gradtide.collective.links.place import RankPlace
from gradtide.errors import Mismatch

OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1,), (1023,), (16_385,), (3, 21_847), (131_077,), (300_001,), (700_003,)]),
)
# The host of each rank. Where only the first host has several ranks, adding up by host is adding up by rank.
PLACES = {"two": [0, 1], "three": [0, 1, 2], "uneven": [0, 0, 1, 2]}
# Where others have, or a host's ranks do not stand together, sums of floats are those of the hosts, in another order.
PLACES |= {"mixed": [0, 1, 0, 2], "pairs": [0, 0, 1, 1], "crossed": [0, 1, 1, 0]}
BY_RANK = ("two", "three", "uneven")
# One rank a host on three hosts, and two hosts whose ranks do not stand together: both are in what is there by default.
REPEATS = ("three", "crossed")
FLOWS = (1, 3)


def join(rank, size):
    cases._groups["cases", size] = Group.from_environment(timeout_s=60)


def with_flows(rank, size, flows, work, *given):
    """The same bits, whatever the number of connections between two ranks."""
    group = group_of(rank, size)
    if group.flows != flows:
        group.use_flows(flows, keep=True)
    return work(rank, size, *given)


def leave(rank, size):
    cases._groups.pop(("cases", size)).close()


@pytest.fixture(scope="module")
def three_hosts():
    with namespaces(3) as hosts:
        yield hosts


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in REPEATS else []) for name in PLACES],
)
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
    by_host = where not in [PLACES[name] for name in BY_RANK]

    @settings(
        max_examples=25,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        case=_cases(operation, exact=by_host and operation in ("all_reduce", "reduce", "reduce_scatter")),
        flows=st.sampled_from(FLOWS),
    )
    def run(case, flows):
        assert not any(ranks.run(with_flows, len(where), flows, check, case))

    run()


@cache  # drawn once by a rank, and not for each type and number of flows
def drawn(rank, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)) * 100


def cut_anywhere(rank, size, where, dtype, cuts):
    """Twice the size of a chunk, and more."""
    group, count = group_of(rank, size), 2_300_003
    all_of_them = [drawn(r, count).to(dtype) for r in range(size)]
    hosts = [[all_of_them[r] for r in range(size) if where[r] == host] for host in dict.fromkeys(where)]
    expected = reduce(torch.add, [reduce(torch.add, tensors) for tensors in hosts])
    pieces = all_of_them[rank].clone()
    for begin, end in pairwise([0, *cuts, count]):
        group.all_reduce(pieces[begin:end])
    assert same(pieces, expected)
    for _ in range(2):  # the first one makes a plan, the other follows it
        assert same(group.all_reduce(all_of_them[rank].clone()), expected)
        kept = all_of_them[rank].clone()
        group.reduce(kept, root=1)
        assert same(kept, expected if rank == 1 else all_of_them[rank])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bits_between_hosts_depend_neither_on_size_nor_on_place_nor_on_flows(apart, dtype):
    ranks, where = apart
    for flows in FLOWS:
        ranks.run(with_flows, len(where), flows, cut_anywhere, where, dtype, [1, 77, 5000, 30_000, 410_001])


def split_unevenly(rank, size, where, dtype, largest):
    group, generator = group_of(rank, size), torch.Generator().manual_seed(largest)
    for _ in range(3):
        sizes = torch.randint(0, largest, (size, size), generator=generator)
        sizes[1] = 0  # who has nothing for anybody
        sent = [torch.randint(0, 100, (int(row.sum()),), generator=generator).to(dtype) for row in sizes]
        parts = [tensor.split(row.tolist()) for tensor, row in zip(sent, sizes, strict=True)]
        arriving = sizes[:, rank].tolist()
        got = torch.empty(sum(arriving), dtype=dtype)
        group.all_to_all_split(sent[rank], sizes[rank].tolist(), got, arriving)
        assert same(got, torch.cat([part[rank] for part in parts]))
    wrong = [1] * size
    wrong[0] += rank == 1
    with pytest.raises(Mismatch, match="rank 1 sends 2 elements to rank 0, which takes 1"):
        group.all_to_all_split(torch.ones(sum(wrong)), wrong, torch.empty(size), [1] * size)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 9), (torch.int8, 3001), (torch.float64, 200_001)])
def test_uneven_parts_go_from_each_rank_to_each(apart, dtype, largest):
    ranks, where = apart
    for flows in FLOWS:
        ranks.run(with_flows, len(where), flows, split_unevenly, where, dtype, largest)


# What a rank may ask for, on a tensor with a row for each rank: with what it fills.
ASKED = {
    "all_reduce": lambda group, rows: (group.all_reduce, rows),
    "broadcast": lambda group, rows: (group.broadcast, rows),
    "all_gather": lambda group, rows: (lambda out: group.all_gather(torch.ones_like(rows[0]), out), rows),
    "reduce_scatter": lambda group, rows: (lambda out: group.reduce_scatter(torch.ones_like(rows), out=out), rows[0]),
    "all_to_all": lambda group, rows: (lambda out: group.all_to_all(torch.ones_like(rows), out), rows),
    "scatter": lambda group, rows: (
        lambda out: group.scatter(out, torch.ones_like(rows) if group.rank == 0 else None),
        rows[0],
    ),
}


def disagree(rank, size, other, asked, count, others_asked, others_count):
    """One rank asks for something else, or for another size of it."""
    group = group_of(rank, size)
    for _ in range(2):  # there is a plan for it the second time
        what, length = (others_asked, others_count) if rank == other else (asked, count)
        call, tensor = ASKED[what](group, torch.full((size, length), float(rank)))
        with pytest.raises(Mismatch, match="the hosts ask for different things") as caught:
            call(tensor)
        assert tensor.eq(rank).all(), "a tensor was changed"
        assert asked in str(caught.value)
        call, tensor = ASKED[asked](group, torch.full((size, count), float(rank)))
        call(tensor)
        assert group.all_reduce(torch.full((count,), float(rank))).eq(sum(range(size))).all()
    return str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        ("all_reduce", 100, "all_reduce", 3),
        ("all_reduce", 300_000, "all_reduce", 3),
        ("all_reduce", 3, "broadcast", 600_000),
        ("all_to_all", 50_000, "all_reduce", 50_000),
        ("all_to_all", 50_000, "all_to_all", 5),
        ("broadcast", 300_000, "all_gather", 300_000),
        ("all_gather", 100_000, "all_gather", 100_001),
        ("reduce_scatter", 600_000, "scatter", 5),
    ],
    ids=lambda asked: "-".join(map(str, asked)),
)
def test_a_mismatch_is_the_same_error_for_all_and_leaves_links_clean_and_tensors_as_they_were(apart, asked):
    """Large ones: megabytes are on their way when it is found, and are read by nobody."""
    ranks, where = apart
    for other, flows in {(0, 1), (1, 3), (len(where) - 1, 3)}:
        assert len(set(ranks.run(with_flows, len(where), flows, disagree, other, *asked))) == 1


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


def leaving(stages):
    """Bytes that go out over the wire."""
    parts = [part for stage in stages if isinstance(stage, Exchange) for part in stage.parts]
    return sum(part.first.size_bytes + part.second_bytes for part in parts)


@pytest.mark.quick
@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 3, 3), (2, 4), (1, 3, 2)])
def test_a_host_sends_what_it_must_however_many_ranks_it_has(counts):
    hosts, ranks, row = len(counts), sum(counts), 64 * 36_000
    adding, root = Adding(1, 1, 4), (0, 0)
    for host in range(hosts):
        here = [RankPlace(host, local, counts) for local in range(counts[host])]
        whole = row * ranks
        left = sum(leaving(stages.all_reduce(p, whole, adding, adding)) for p in here)
        assert left == pytest.approx(2 * whole * (hosts - 1) / hosts, rel=1e-4)  # shares are whole cache lines
        assert sum(leaving(stages.reduce(p, whole, root, adding, adding)) for p in here) == (whole if host else 0)
        assert sum(leaving(stages.broadcast(p, whole, root)) for p in here) <= whole * (1 if hosts == 2 else 2) * 1.0001
        others = ranks - counts[host]
        assert sum(leaving(row_stages.all_gather(p, row)) for p in here) == row * counts[host] * (hosts - 1)
        assert sum(leaving(row_stages.reduce_scatter(p, row, adding, adding)) for p in here) == row * others
        if len(set(counts)) == 1:
            assert sum(leaving(row_stages.gather(p, row, root)) for p in here) == (row * counts[host] if host else 0)
            assert sum(leaving(row_stages.scatter(p, row, root)) for p in here) == (0 if host else row * others)


def sent_bytes(rank, size, operation, count):
    """That left this host during a gather or a scatter, in bytes."""

    def sent():
        with open("/proc/thread-self/net/dev") as counters:
            return sum(int(line.split(":")[1].split()[8]) for line in counters if line.strip().startswith("gt"))

    group = group_of(rank, size)
    group.barrier()
    before, rows = sent(), torch.arange(size * count, dtype=torch.float32).view(size, count)
    group.barrier()
    if operation == "gather":
        out = group.gather(rows[rank], 0)
        assert rank or out.equal(rows)
    else:
        assert group.scatter(torch.empty(count), None if rank else rows).equal(rows[rank])
    group.barrier()
    return sent() - before


@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_gather_and_scatter_send_no_row_that_is_not_needed(apart, operation):
    started, where = apart
    count = 250_000
    sent = started.run(sent_bytes, len(where), operation, count)
    for host in set(where):
        rows = len(where) - where.count(0) if operation == "scatter" else where.count(host)
        needed = 4 * count * rows * ((host == 0) == (operation == "scatter"))
        assert sent[where.index(host)] < 1.1 * needed + 200_000  # and headers, confirmations, barriers
