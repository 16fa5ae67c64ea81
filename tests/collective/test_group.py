from itertools import pairwise

import pytest
import torch
from cases import DTYPES, Case, check, group_of, reduced, reductions_of, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradtide.collective.host.one_host import OneHost

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "ring",
)
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1,), (1023,), (16_385,), (3, 21_847), (131_077,), (300_001,)]),
)


@st.composite
def _cases(draw, operation):
    dtype = draw(st.sampled_from(DTYPES))
    return Case(
        operation,
        draw(st.sampled_from(reductions_of(dtype))),
        dtype,
        draw(SHAPES),
        draw(st.sampled_from(["plain", "plain", "strided", "shared"])),
        draw(st.integers(0, 4)),
        draw(st.integers(0, 10_000)),
        draw(st.booleans()),
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_rank_gets_bit_for_bit_what_plain_torch_computes(ranks, operation):
    @settings(
        max_examples=100,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(size=st.integers(1, 5), case=_cases(operation))
    def run(size, case):
        assert not any(ranks.run(check, size, case))

    run()


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1, 1)])
def test_a_single_number_of_a_larger_tensor_is_communicated_like_any_other(ranks, shape):
    for size in (1, 2):
        for operation in OPERATIONS:
            assert not any(ranks.run(check, size, Case(operation, "sum", torch.float64, shape, "strided", 0, 7)))


def cut_anywhere(rank, size, dtype, cuts):
    group, count = group_of(rank, size), 200_003
    whole = (torch.randn(count, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)
    in_memory = group.shared_tensor(count, dtype).copy_(whole)
    pieces = whole.clone()
    for begin, end in pairwise([0, *cuts, count]):
        group.all_reduce(pieces[begin:end])
    assert same(group.all_reduce(whole.clone()), pieces)
    assert same(group.all_reduce(in_memory), pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_bits_depend_neither_on_the_message_s_size_nor_on_bucket_boundaries(ranks, dtype):
    for size in (2, 3, 5):
        ranks.run(cut_anywhere, size, dtype, [1, 77, 40_000, 110_001])


def mixed(rank, size, count, dtype, reduction, shared_ranks):
    """Some ranks come with a tensor in shared memory, at places of their own, and the others with any other."""
    group = group_of(rank, size)
    inputs = [(torch.randn(count, generator=torch.Generator().manual_seed(r)) * 100).to(dtype) for r in range(size)]
    memory = group.shared_tensor(count + 64 * size, dtype)
    mine = memory[7 * rank : 7 * rank + count].copy_(inputs[rank]) if rank in shared_ranks else inputs[rank].clone()
    case = Case("all_reduce", reduction, dtype, (count,), "", 0, 0)
    assert same(group.all_reduce(mine, reduction), reduced(case, inputs))
    outside = torch.cat([memory[: 7 * rank], memory[7 * rank + count :]])
    assert rank not in shared_ranks or outside.eq(0).all(), "something was written beside the tensor"


@pytest.mark.parametrize("count", [100, 2048, 5003, 40_001, 300_007])
def test_tensors_anywhere_in_shared_memory_or_in_none_give_the_same_bits(ranks, count):
    for size in (2, 3, 5):
        for dtype, reduction in ((torch.float32, "sum"), (torch.bfloat16, "mean"), (torch.int16, "bxor")):
            for shared_ranks in (range(size), [0], [size - 1]):
                ranks.run(mixed, size, count, dtype, reduction, tuple(shared_ranks))


def many_memories(rank, size):
    """More than kernels have rows for: what is not in a row is reduced as any other tensor."""
    group = group_of(rank, size)
    tensors = [group.shared_tensor(3000) for _ in range(1030)]
    for tensor in (tensors[0], tensors[-1], tensors[500]):
        assert group.all_reduce(tensor.fill_(rank + 1.0)).eq(size * (size + 1) / 2).all()
    del tensors[::2]
    assert group.all_reduce(group.shared_tensor(3000).fill_(1.0)).eq(size).all()


def test_there_can_be_any_number_of_shared_tensors(ranks):
    ranks.run(many_memories, 2)


def negated(rank, size):
    """The imaginary part of a conjugate is contiguous if it is one number, but its memory holds the opposite."""
    group = group_of(rank, size)
    for _ in range(2):
        number = torch.tensor([complex(0, rank + 1)]).conj().imag
        assert group.all_reduce(number).tolist() == [-size * (size + 1) / 2]


def test_a_number_that_is_negated_when_read_is_summed_as_it_reads(ranks):
    ranks.run(negated, 2)


def in_order(rank, size):
    """Many at once in the background, with blocking ones between: each sees what those before it left."""
    group, tensor = group_of(rank, size), torch.ones(100)
    handles = [group.all_reduce(tensor, async_op=True) for _ in range(5)]
    group.all_reduce(tensor, "mean")
    last = group.broadcast(tensor, 1, async_op=True)
    assert last.wait(20) is tensor
    assert all(handle.done() and handle.result() is tensor for handle in handles)
    return tensor[0].item()


def test_background_work_and_blocking_calls_keep_their_order(ranks):
    assert ranks.run(in_order, 3) == [3.0**5] * 3


def planned(rank, size, background):
    """How many plans five all-reduces of one kind take."""
    group, made, plan = group_of(rank, size), [], OneHost.plan
    OneHost.plan = lambda *arguments: made.append(plan(*arguments)) or made[-1]
    try:
        for _ in range(5):
            tensor = torch.full((1234 + background,), rank + 1.0)
            found = group.all_reduce(tensor, async_op=background)
            assert (found.wait(20) if background else found) is tensor
            assert tensor.eq(size * (size + 1) / 2).all()
    finally:
        OneHost.plan = plan
    return len(made)


@pytest.mark.parametrize("background", [False, True])
def test_a_plan_that_is_remembered_is_used_also_in_the_background(ranks, background):
    assert ranks.run(planned, 2, background) == [2, 2]  # the first run makes one, and remembers another


def with_gradient(rank, size):
    parameter = torch.nn.Parameter(torch.full((4,), float(rank)))
    group_of(rank, size).broadcast(parameter, 1)
    return parameter.tolist()


def test_a_parameter_can_be_broadcast_in_place(ranks):
    assert ranks.run(with_gradient, 2) == [[1.0] * 4] * 2


def explained(rank, size):
    return group_of(rank, size).explain()


def test_a_group_on_one_host_says_so(ranks):
    said = "all 2 ranks are on one host: a collective is one compiled call in shared memory"
    assert ranks.run(explained, 2) == [said] * 2
