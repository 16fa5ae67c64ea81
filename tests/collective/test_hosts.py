"""Two hosts: network namespaces joined by a veth pair that is limited to a given rate."""

import time

import pytest
import torch
from cases import same

from gradtide.collective.executors.choose import choose
from gradtide.collective.groups.group import Group
from gradtide.errors import Mismatch
from gradtide.schedule.predict.simulate import simulate
from gradtide.topology.model import NodeKind

RATE_BYTES = 20e6  # slow enough that the processors don't matter: 160 Mbit/s


def operations(rank, size):
    with Group.from_environment(timeout_s=30) as group:
        check_operations(group)
        tensor = torch.full((70_001,), float(rank))
        assert group.all_reduce(tensor, strategy="hierarchical").eq(6).all()
        assert group.all_reduce(tensor, "mean", strategy="auto").eq(6).all()


def check_operations(group):
    rank, size = group.rank, group.size
    inputs = [torch.randn(size, 1001, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    mine = inputs[rank]
    whole = torch.stack(inputs).sum(0)
    torch.testing.assert_close(group.all_reduce(mine.clone()), whole)
    torch.testing.assert_close(group.all_reduce(mine.clone(), "mean"), whole / size)
    assert group.all_reduce(torch.tensor([rank], dtype=torch.bfloat16), "max").item() == size - 1
    for root in range(size):
        assert same(group.broadcast(mine.clone(), root), inputs[root])
        torch.testing.assert_close(group.reduce(mine.clone(), root=root), whole if rank == root else mine)
        gathered = group.gather(mine, root)
        assert gathered is None if rank != root else same(gathered, torch.stack(inputs))
        row = group.scatter(torch.empty(1001), mine if rank == root else None, root)
        assert same(row, inputs[root][rank])
    assert same(group.all_gather(mine), torch.stack(inputs))
    torch.testing.assert_close(group.reduce_scatter(mine), whole[rank])
    assert same(group.all_to_all(mine), torch.stack([tensor[rank] for tensor in inputs]))
    got = torch.empty_like(mine)
    receiving = group.recv(got, (rank - 1) % size, async_op=True)
    group.send(mine, (rank + 1) % size)
    receiving.wait(20)
    assert same(got, inputs[rank - 1])
    group.barrier()
    with pytest.raises(Mismatch, match=r"rank 0: all_reduce\(sum\) of float32\[3\]; .*rank 2: .*float32\[4\]"):
        group.all_reduce(torch.ones(3 if rank < 2 else 4))
    assert group.all_reduce(torch.full((3,), 1.0 + rank)).eq(size * (size + 1) / 2).all()


def measure(rank, size, count, repeats):
    """The probed topology, the shortest time of `hierarchical`, and what the planner predicts for it."""
    with Group.from_environment(timeout_s=30) as group:
        topology = group.probe(budget_s=2.0)
        schedule = choose("hierarchical", topology, 4 * count)
        tensor = group.shared_tensor(count)
        taken = []
        for _ in range(repeats):
            group.barrier()
            begin = time.perf_counter()
            group.all_reduce(tensor, strategy=schedule)
            taken.append(time.perf_counter() - begin)
        assert tensor.eq(0).all()
    predicted_s = simulate(schedule, topology, 4 * count).seconds
    home = {node.name: node.machine for node in topology.nodes}
    between = [link.bytes_per_s for link in topology.links if home[link.source] != home[link.target]]
    machines = {node.name: node.machine for node in topology.nodes if node.kind is NodeKind.DEVICE}
    return machines, between, min(taken), predicted_s


def test_every_operation_works_between_hosts(far):
    far.run(operations, 4)


@pytest.mark.timing
def test_hierarchical_on_two_hosts_takes_the_predicted_time(far):
    found = far.run(measure, 4, 1 << 20, 5)
    machines, between, measured_s, predicted_s = found[0]
    assert machines == {"rank0": "host0", "rank1": "host0", "rank2": "host1", "rank3": "host1"}
    assert all(machines == other[0] for other in found)
    assert len(between) == 2  # one wire each way, which both ranks of a host share
    # What was probed is the rate that was set, but for headers, tbf's burst and other work of this machine.
    assert all(0.75 * RATE_BYTES < rate < 1.35 * RATE_BYTES for rate in between), between
    assert 0.75 < measured_s / predicted_s < 1.25, (measured_s, predicted_s)
