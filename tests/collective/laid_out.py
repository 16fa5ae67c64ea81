"""Every operation of torch.distributed into tensors that are not contiguous: transposed, strided, narrowed."""

import torch
import torch.distributed as dist

LAYOUTS = {
    "transposed": lambda: torch.zeros(3, 4).t(),
    "strided": lambda: torch.zeros(8, 6)[::2, ::2],
    "narrowed": lambda: torch.zeros(4, 5)[:, 1:4],
    "permuted": lambda: torch.zeros(2, 3, 2).permute(2, 0, 1),
}


def content(number, shape):
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(number)).float()


def check_all(rank, size, make, *, background):
    """Whatever torch gives a contiguous tensor must be in this one when the operation is over."""
    shape = make().shape
    inputs = [content(other, shape) for other in range(size)]
    mine = make().copy_(inputs[rank])
    parts = [content(100 + other, (size, *shape)) for other in range(size)]
    rows = [make().copy_(part) for part in parts[rank]]

    def run(operation, *arguments):
        work = operation(*arguments, async_op=background)
        if background:
            work.wait()

    def fresh(count):
        return [make() for _ in range(count)]

    def same(got, expected):
        assert torch.equal(got, expected), (got, expected)

    whole = torch.stack(inputs).sum(0)
    run(dist.all_reduce, got := make().copy_(mine))
    same(got, whole)
    for root in range(size):
        run(dist.broadcast, got := make().copy_(mine), root)
        same(got, inputs[root])
        run(dist.reduce, got := make().copy_(mine), root)
        same(got, whole if rank == root else inputs[rank])
        targets = fresh(size) if rank == root else None
        run(dist.gather, mine, targets, root)
        assert targets is None or all(map(torch.equal, targets, inputs))
        run(dist.scatter, got := make(), rows if rank == root else None, root)
        same(got, parts[root][rank])
    run(dist.all_gather, targets := fresh(size), mine)
    assert all(map(torch.equal, targets, inputs))
    run(dist.reduce_scatter, got := make(), rows)
    same(got, torch.stack(parts).sum(0)[rank])
    run(dist.all_to_all, targets := fresh(size), rows)
    assert all(map(torch.equal, targets, [part[rank] for part in parts]))


def check_single(rank, size, *, background):
    """Those that take one tensor for all ranks: it is transposed."""
    inputs = [content(other, (2, 3)) for other in range(size)]
    parts = [content(50 + other, (size, 4)) for other in range(size)]
    mine, rows = (tensor.t().contiguous().t() for tensor in (inputs[rank], parts[rank]))
    work = dist.all_gather_into_tensor(whole := torch.zeros(3, 2 * size).t(), mine, async_op=background)
    assert not background or work.wait()
    assert torch.equal(whole, torch.cat(inputs))
    work = dist.reduce_scatter_tensor(got := torch.zeros(4, 3)[:, 1], rows.flatten(), async_op=background)
    assert not background or work.wait()
    assert torch.equal(got, torch.stack(parts).sum(0)[rank])
    work = dist.all_to_all_single(whole := torch.zeros(4, size).t(), rows, async_op=background)
    assert not background or work.wait()
    assert torch.equal(whole, torch.stack([part[rank] for part in parts]))


def check_messages(rank, size, make, times):
    """Each in turn: recv, irecv before and after the message is there, and batch_isend_irecv."""
    left, right = (rank - 1) % size, (rank + 1) % size
    for number in range(times):
        sent = [content(10 * number + other, make().shape) for other in range(size)]
        mine, got = make().copy_(sent[rank]), make()
        if rank % 2:
            dist.recv(got, left)
            dist.send(mine, right)
        else:
            dist.send(mine, right)
            dist.recv(got, left)
        assert torch.equal(got, sent[left]), "recv"
        work = dist.irecv(got := make(), left)
        other = dist.isend(mine, right)
        assert work.wait()
        assert torch.equal(got, sent[left]), "irecv"
        other.wait()
        swapped = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got := make(), left)]
        for work in dist.batch_isend_irecv(swapped):
            work.wait()
        assert torch.equal(got, sent[left]), "batch_isend_irecv"


def check_every_layout(rank, size, layouts=tuple(LAYOUTS), times=3):
    for make in (LAYOUTS[layout] for layout in layouts):
        for background in (False, True):
            check_all(rank, size, make, background=background)
        check_messages(rank, size, make, times)
    for background in (False, True):
        check_single(rank, size, background=background)


def check_uneven(rank, size):
    """Lists of tensors that are not all of one size: rank r has, or is to have, 1000 * r + 1 elements."""
    counts = [1000 * other + 1 for other in range(size)]
    inputs = [content(other, (count,)) for other, count in enumerate(counts)]
    dist.all_gather(got := [torch.empty(count) for count in counts], inputs[rank])
    assert all(map(torch.equal, got, inputs))
    lists = [[content(100 * other + to, (count, 2)) for to, count in enumerate(counts)] for other in range(size)]
    given = [part.clone() for part in lists[rank]]
    dist.reduce_scatter(whole := torch.empty(counts[rank], 2), given)
    assert torch.equal(whole, torch.stack([parts[rank] for parts in lists]).sum(0))
    assert all(map(torch.equal, given, lists[rank]))
    dist.all_to_all(arrived := [torch.empty(counts[rank], 2) for _ in range(size)], given)
    assert all(map(torch.equal, arrived, [parts[rank] for parts in lists]))
    source = torch.cat(given)
    dist.all_to_all_single(flat := torch.empty(size * counts[rank], 2), source, [counts[rank]] * size, counts)
    assert torch.equal(flat, torch.cat(arrived))
