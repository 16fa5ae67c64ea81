"""torch.distributed's operations over gradtide."""

import itertools
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from laid_out import check_every_layout, check_uneven
from process_groups import process_group
from split_groups import check_parts

from gradtide.errors import TopologyError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
OPS = {
    dist.ReduceOp.SUM: lambda parts: parts.sum(0),
    dist.ReduceOp.PRODUCT: lambda parts: parts.prod(0),
    dist.ReduceOp.MIN: lambda parts: parts.amin(0),
    dist.ReduceOp.MAX: lambda parts: parts.amax(0),
}
BITS = {
    dist.ReduceOp.BAND: lambda a, b: a & b,
    dist.ReduceOp.BOR: lambda a, b: a | b,
    dist.ReduceOp.BXOR: lambda a, b: a ^ b,
}


def given(rank, shape, dtype=torch.float32):
    """What `rank` brings: small whole numbers, which every dtype adds exactly."""
    return torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def reductions(rank, size, path):
    with process_group(rank, size, path):
        for dtype, (op, expected) in itertools.product(DTYPES, OPS.items()):
            parts = torch.stack([given(other, (5, 7), dtype) for other in range(size)])
            mine = parts[rank].clone()
            dist.all_reduce(mine, op)
            assert torch.equal(mine, expected(parts).to(dtype)), (dtype, op)
            mine = parts[rank].clone()
            dist.reduce(mine, 1, op)
            assert torch.equal(mine, expected(parts).to(dtype) if rank == 1 else parts[rank]), (dtype, op)
        for dtype, (op, expected) in itertools.product(DTYPES[4:], BITS.items()):
            parts = [given(other, (9,), dtype) for other in range(size)]
            dist.all_reduce(mine := parts[rank].clone(), op)
            whole = parts[0]
            for part in parts[1:]:
                whole = expected(whole, part)
            assert torch.equal(mine, whole)
        dist.all_reduce(mine := torch.full((3,), float(rank)), dist.ReduceOp.AVG)
        assert mine.eq((size - 1) / 2).all()
        dist.all_reduce(mine := torch.full((3,), complex(rank, 1)))
        assert mine.eq(complex(size * (size - 1) / 2, size)).all()
        dist.all_reduce(flag := torch.tensor([rank == 1, False]), dist.ReduceOp.MAX)
        assert flag.tolist() == [True, False]
        with pytest.raises(ValueError, match="does not support"):
            dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX)
        with pytest.raises(RuntimeError, match="torch has no band of float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)


def test_every_reduction_of_every_dtype_is_what_torch_computes(ranks, tmp_path):
    ranks.run(reductions, 3, str(tmp_path / "store"))


def strides(rank, size, path):
    """Neither shape nor stride need be the same: elements are counted in the order of the indices."""
    with process_group(rank, size, path):
        mine = torch.arange(6.0).view(2, 3).t() if rank == 0 else torch.tensor([0.0, 3, 1, 4, 2, 5])
        dist.all_reduce(mine)
        assert mine.flatten().tolist() == [0, 6, 2, 8, 4, 10]
        other = torch.zeros(4, 2)[:, 0] if rank else torch.arange(4.0)
        dist.broadcast(other, 0)
        assert other.tolist() == [0, 1, 2, 3]
        parameter = torch.nn.Parameter(torch.ones(3))
        dist.all_reduce(parameter)
        assert parameter.tolist() == [2, 2, 2]
        dist.all_reduce(torch.empty(0))
        dist.all_reduce(number := torch.tensor(2.0))
        assert number.item() == 4


def test_tensors_may_differ_in_shape_and_stride(ranks, tmp_path):
    ranks.run(strides, 2, str(tmp_path / "store"))


def every_layout(rank, size, path):
    with process_group(rank, size, path):
        check_every_layout(rank, size)


@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_is_over_only_when_a_tensor_that_is_not_contiguous_has_its_content(ranks, tmp_path, size):
    ranks.run(every_layout, size, str(tmp_path / "store"))


def movements(rank, size, path):
    with process_group(rank, size, path):
        parts = [given(other, (3, 5)) for other in range(size)]
        for root in range(size):
            dist.broadcast(mine := parts[rank].clone(), root)
            assert torch.equal(mine, parts[root])
            targets = [torch.empty(3, 5) for _ in range(size)] if rank == root else None
            dist.gather(parts[rank], targets, root)
            assert targets is None or all(map(torch.equal, targets, parts))
            dist.scatter(mine := torch.empty(5), list(parts[root][:size]) if rank == root else None, root)
            assert torch.equal(mine, parts[root][rank])
        dist.all_gather(targets := [torch.empty(3, 5) for _ in range(size)], parts[rank])
        assert all(map(torch.equal, targets, parts))
        dist.all_gather_into_tensor(whole := torch.empty(3 * size, 5), parts[rank])
        assert torch.equal(whole, torch.cat(parts))
        rows = [given(other, (size, 4)) for other in range(size)]
        dist.reduce_scatter_tensor(mine := torch.empty(4), rows[rank].flatten())
        assert torch.equal(mine, torch.stack(rows).sum(0)[rank])
        dist.reduce_scatter(mine := torch.empty(4), list(rows[rank]), dist.ReduceOp.MAX)
        assert torch.equal(mine, torch.stack(rows).amax(0)[rank])
        dist.all_to_all(targets := [torch.empty(4) for _ in range(size)], list(rows[rank]))
        assert all(map(torch.equal, targets, [row[rank] for row in rows]))
        dist.all_to_all_single(whole := torch.empty(size, 4), rows[rank])
        assert torch.equal(whole, torch.stack([row[rank] for row in rows]))
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": other} for other in range(size)]


def test_broadcast_gather_scatter_and_all_to_all_move_what_they_should(ranks, tmp_path):
    ranks.run(movements, 3, str(tmp_path / "store"))


def uneven(rank, size, path):
    """Rank i sends i + j elements to rank j; then one rank is wrong about it."""
    with process_group(rank, size, path):
        sizes = [rank + other for other in range(size)]
        source = torch.full((sum(sizes), 2), float(rank))
        target = torch.empty(sum(sizes), 2)
        dist.all_to_all_single(target, source, sizes, sizes)
        assert torch.equal(
            target[:, 0], torch.cat([torch.full((rank + other,), float(other)) for other in range(size)])
        )
        parts = [torch.full((rank + other,), float(rank)) for other in range(size)]
        dist.all_to_all(targets := [torch.empty(rank + other) for other in range(size)], parts)
        assert all(part.eq(other).all() for other, part in enumerate(targets))
        splits = [1] * size if rank != 1 else [2, 1, 0]
        with pytest.raises(dist.DistBackendError, match=r"rank 0 sends 1 elements to rank 1, which takes 2"):
            dist.all_to_all_single(torch.empty(size), torch.ones(size), splits, [1] * size)
        check_uneven(rank, size)


def test_parts_of_all_to_all_may_have_any_size_if_both_sides_agree(ranks, tmp_path):
    ranks.run(uneven, 3, str(tmp_path / "store"))


def coalesced(rank, size, path):
    with process_group(rank, size, path):
        tensors = [torch.full((n,), float(rank + n)) for n in (1, 3, 5)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert [tensor[0].item() for tensor in tensors] == [1 + 2 * n for n in (1, 3, 5)]
        outputs = [torch.empty(size * n) for n in (1, 3)]
        with dist._coalescing_manager(async_ops=True) as both:
            for tensor, output in zip(tensors, outputs, strict=False):
                dist.all_gather_into_tensor(output, tensor)
        both.wait()
        assert outputs[1].eq(7).all()
        with dist._coalescing_manager():
            for output, n in zip(outputs, (1, 3), strict=True):
                dist.reduce_scatter_tensor(torch.empty(n), output)
        whole = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", dist.group.WORLD)
        assert [part.sum().item() for part in whole] == [4, 6]
        whole = functional.all_gather_into_tensor_coalesced([torch.ones(2)], dist.group.WORLD)
        assert whole[0].sum().item() == 4
        assert functional.all_gather_tensor(torch.full((1, 2), float(rank)), 0, dist.group.WORLD)[1, 0].item() == 1
        assert functional.reduce_scatter_tensor(torch.ones(4), "avg", 0, dist.group.WORLD).tolist() == [1, 1]
        lists = [[torch.empty(2) for _ in range(3)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [torch.full((2,), float(rank + number)) for number in range(3)])
        assert [[tensor[0].item() for tensor in tensors] for tensors in lists] == [[0, 1, 2], [1, 2, 3]]


def test_coalesced_and_functional_forms_work_too(ranks, tmp_path):
    ranks.run(coalesced, 2, str(tmp_path / "store"))


def in_the_background(rank, size, path):
    with process_group(rank, size, path):
        tensors = [torch.full((n,), float(rank)) for n in (10, 100_000, 3)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        works.append(dist.barrier(async_op=True))
        for work in reversed(works):
            assert work.wait()
        assert all(work.is_completed() and work.is_success() and work.exception() is None for work in works)
        assert all(tensor.eq(1).all() for tensor in tensors)
        assert works[0].result()[0] is tensors[0]
        future = dist.all_reduce(tensor := torch.ones(3), async_op=True).get_future()
        assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [4, 4, 4]
        assert tensor.tolist() == [2, 2, 2]
        with pytest.raises(ValueError, match="only a receive has a source"):
            works[0]._source_rank()


def test_work_that_runs_in_the_background_can_be_waited_for_in_every_way(ranks, tmp_path):
    ranks.run(in_the_background, 2, str(tmp_path / "store"))


def callbacks(rank, size, path):
    """A callback may ask for more and wait for it: it is served before what was asked for meanwhile, on every rank."""
    with process_group(rank, size, path):
        futures, seen = [], []

        def once_more(future):
            value = future.value()[0]
            seen.append(value[0].item())
            return dist.all_reduce(value, async_op=True).get_future().wait()[0]

        for number in range(20):
            future = dist.all_reduce(torch.full((number + 1,), 1.0), async_op=True).get_future()
            futures.append(future.then(once_more).then(lambda done: done.value() + 1))
        assert [future.wait()[0].item() for future in futures] == [size * size + 1] * 20
        assert seen == [size] * 20


def test_a_callback_may_wait_for_what_it_asks_for(ranks, tmp_path):
    ranks.run(callbacks, 2, str(tmp_path / "store"))


def later_ones(rank, size, path):
    """A callback waits for what was asked for before it ran, but comes after it in the queue."""
    with process_group(rank, size, path):
        works = []

        def wait_for_the_last(future):
            go.wait()
            works[-1].wait()
            return works[-1].result()[0].item()

        go = threading.Event()
        first = dist.all_reduce(torch.ones(200_000), async_op=True)
        answer = first.get_future().then(wait_for_the_last)
        works += [dist.all_reduce(torch.tensor([float(n)]), async_op=True) for n in range(3)]
        go.set()
        assert answer.wait() == 4
        # And for a message, which this thread does not bring.
        got = torch.empty(1)
        arriving = dist.irecv(got, 1 - rank)
        future = dist.all_reduce(torch.ones(200_000), async_op=True).get_future()
        heard = future.then(lambda _: arriving.wait() and got.item())
        dist.send(torch.tensor([7.0]), 1 - rank)
        assert heard.wait() == 7
        # Leaving with a receive that nothing comes for, at once and in order.
        dist.irecv(torch.empty(3), 1 - rank)


def test_a_callback_may_wait_for_what_comes_after_it(ranks, tmp_path):
    begin = time.monotonic()
    ranks.run(later_ones, 2, str(tmp_path / "store"))
    assert time.monotonic() - begin < 30


def aborted(rank, size, path):
    with process_group(rank, size, path):
        dist.barrier()
        if rank == 0:
            work = dist.all_reduce(torch.ones(3), async_op=True)  # the other never comes
            dist.group.WORLD.abort()
            with pytest.raises(dist.DistBackendError, match="was closed"):  # before it began, or during it
                work.wait()
            dist.distributed_c10d._get_default_store().set("aborted", "yes")
        dist.distributed_c10d._get_default_store().wait(["aborted"])


def test_an_aborted_group_ends_what_is_under_way(ranks, tmp_path):
    ranks.run(aborted, 2, str(tmp_path / "store"))


def messages(rank, size, path):
    with process_group(rank, size, path):
        other, large = 1 - rank, 3_000_000
        # Full duplex: both send first, and much more than a channel holds.
        got = torch.empty(large)
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((large,), float(rank)), other),
                dist.P2POp(dist.irecv, got, other),
            ]
        )
        for request in requests:
            request.wait()
        assert got.eq(other).all()
        # By tag: the second is asked for first, and while the first is still awaited.
        if rank == 0:
            dist.send(torch.tensor([2.0]), 1, tag=2)
            dist.recv(answer := torch.zeros(1), 1)
            dist.send(torch.tensor([1.0]), 1, tag=1)
            assert answer.item() == 5
        else:
            first, second = torch.zeros(1), torch.zeros(1)
            waiting = dist.irecv(first, 0, tag=1)
            dist.irecv(second, 0, tag=2).wait()
            dist.send(torch.tensor([5.0]), 0)
            waiting.wait()
            assert (first.item(), second.item()) == (1, 2)
            assert waiting.is_completed()
        # What nobody has asked for yet is kept, whatever its size.
        if rank == 0:
            sending = dist.isend(torch.full((large,), 3.0), 1, tag=3)
            dist.send(torch.tensor([4.0]), 1, tag=4)
            sending.wait()
        else:
            dist.recv(second, 0, tag=4)
            dist.recv(got, 0, tag=3)
            assert second.item() == 4
            assert got.eq(3).all()
        dist.barrier()


def test_messages_are_full_duplex_and_told_apart_by_tag(ranks, tmp_path):
    ranks.run(messages, 2, str(tmp_path / "store"))


def from_anybody(rank, size, path):
    with process_group(rank, size, path):
        if rank:
            dist.send(torch.full((4,), float(rank)), 0)
            dist.send(torch.full((4,), 10.0 + rank), 0, tag=1)
        else:
            found = {}
            for _ in range(1, size):
                tensor = torch.empty(4)
                sender = dist.recv(tensor)
                found[sender] = tensor[0].item()
            assert found == {other: float(other) for other in range(1, size)}
            named = dist.irecv(named_tensor := torch.empty(4), 1, tag=1)
            work = dist.irecv(tensor := torch.empty(4), tag=1)
            work.wait()
            named.wait()
            assert (work._source_rank(), tensor[0].item()) == (2, 12)
            assert named_tensor[0].item() == 11


def test_a_receive_from_anybody_says_who_sent(ranks, tmp_path):
    ranks.run(from_anybody, 3, str(tmp_path / "store"))


def subgroups(rank, size, path):
    with process_group(rank, size, path):
        pair = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(tensor := torch.tensor([float(rank)]), group=pair)
            assert tensor.item() == 2
            assert dist.get_rank(pair) == rank // 2
            dist.broadcast(tensor := torch.tensor([float(rank)]), 2, group=pair)
            assert tensor.item() == 2
            dist.destroy_process_group(pair)
        dist.all_reduce(tensor := torch.ones(1))
        assert tensor.item() == 3


def test_sub_groups_work_beside_the_whole(ranks, tmp_path):
    ranks.run(subgroups, 3, str(tmp_path / "store"))


def beside_gloo(rank, size, path):
    with process_group(rank, size, path, backend="gloo"):
        ours = dist.new_group(backend="gradtide")
        assert (dist.get_backend(), dist.get_backend(ours)) == ("gloo", "gradtide")
        for group in (None, ours, None):
            dist.all_reduce(tensor := torch.ones(3), group=group)
            assert tensor.tolist() == [2, 2, 2]


def test_a_group_may_be_made_beside_gloo(ranks, tmp_path):
    ranks.run(beside_gloo, 2, str(tmp_path / "store"))


def sparse(rank, size, path):
    with process_group(rank, size, path):
        tensor = torch.sparse_coo_tensor([[rank, 3]], [[1.0, 2.0], [3.0, 4.0]], (5, 2))
        dist.all_reduce(tensor)
        expected = torch.zeros(5, 2)
        expected[0] = expected[1] = torch.tensor([1.0, 2.0])
        expected[3] = torch.tensor([6.0, 8.0])
        assert torch.equal(tensor.to_dense(), expected)


def test_sparse_tensors_are_added_entry_by_entry(ranks, tmp_path):
    ranks.run(sparse, 2, str(tmp_path / "store"))


def mistakes(rank, size, path):
    with process_group(rank, size, path):
        for call, text in (
            (lambda: dist.all_reduce(torch.ones(2, device="meta")), "takes CPU tensors.*can't be mixed"),
            (lambda: dist.all_gather([torch.ones(2)], torch.ones(2)), "1 tensors given, one a rank needed: 2"),
            (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)), "does not hold 2 times"),
            (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), "3 rows can't be split between 2 ranks"),
            (lambda: dist.new_group(backend="gradtide", pg_options=3), "pg_options of gradtide is a topology"),
            (lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0)), "multiply the tensor yourself"),
        ):
            with pytest.raises(RuntimeError, match=text):
                call()
        with pytest.raises(TopologyError, match="nowhere"):
            dist.new_group(backend="gradtide", pg_options="nowhere.toml")
        dist.barrier()


def test_a_mistake_is_one_line_and_the_group_goes_on(ranks, tmp_path):
    ranks.run(mistakes, 2, str(tmp_path / "store"))


def parts(rank, size, path):
    with process_group(rank, size, path):
        check_parts(rank, size)


def test_a_group_can_be_split_and_its_parts_work_beside_it(ranks, tmp_path):
    ranks.run(parts, 4, str(tmp_path / "store"))
