"""One rank of a program on several hosts: run by test_c10d_hosts.py in a network namespace; prints what it found."""

import torch
import torch.distributed as dist
from laid_out import check_every_layout, check_uneven
from split_groups import check_parts
from torch.nn.parallel import DistributedDataParallel

from gradtide.errors import Mismatch
from gradtide.registration import register


def check_from_anybody(rank: int, size: int) -> None:
    """Rank 0 hears from its neighbour on the host and from both ranks of the other one, by tag."""
    for tag in (7, 5):
        if rank:
            dist.send(torch.full((5,), float(rank + tag)), 0, tag=tag)
    for tag in (5, 7) if rank == 0 else ():
        found = {}
        for _ in range(1, size):
            source = dist.recv(tensor := torch.empty(5), tag=tag)
            found[source] = tensor[0].item() - tag
        assert found == {other: float(other) for other in range(1, size)}


def main() -> None:
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gradtide")
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 100_000):
        dist.all_reduce(tensor := torch.full((count,), float(rank)))
        assert tensor.eq(6).all()
    dist.all_gather(parts := [torch.empty(2) for _ in range(size)], torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == [0, 1, 2, 3]
    dist.all_to_all_single(whole := torch.empty(size), torch.full((size,), float(rank)))
    assert whole.tolist() == [0, 1, 2, 3]
    check_uneven(rank, size)
    across = dist.new_group([0, 3])
    if rank in (0, 3):
        dist.broadcast(tensor := torch.full((5,), float(rank)), 3, group=across)
        assert tensor.eq(3).all()
    work = dist.irecv(got := torch.empty(50_000), (rank - 1) % size, tag=2)
    dist.send(torch.full((50_000,), float(rank)), (rank + 1) % size, tag=2)
    work.wait()
    assert got.eq((rank - 1) % size).all()
    check_from_anybody(rank, size)
    check_parts(rank, size)
    check_every_layout(rank, size, ("transposed",), times=2)
    torch.manual_seed(rank)
    model = torch.nn.Linear(200, 200)
    ddp = DistributedDataParallel(model)
    ddp(torch.full((2, 200), float(rank))).sum().backward()
    assert model.weight.grad.eq(3).all(), model.weight.grad  # the mean of 2 * rank
    try:
        dist.all_reduce(torch.ones(3 if rank < 2 else 4))
    except Mismatch as error:
        print("mismatch:", error)
    dist.barrier()
    print(f"on one host: {dist.group.WORLD.group.on_one_host}; planned on {dist.group.WORLD.group.topology.name}")
    dist.destroy_process_group()
