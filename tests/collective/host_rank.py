"""One rank of a job on several hosts: run by test_hosts.py in a network namespace; prints what it found as JSON."""

import json
import time

import pytest
import torch
from cases import same

from gradtide.collective.choose import choose
from gradtide.collective.group import Group
from gradtide.errors import Mismatch
from gradtide.schedule.simulate import simulate


def check_operations(group: Group) -> None:
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


def measure(group: Group, count: int, repeats: int) -> tuple[float, float]:
    """The shortest time of `hierarchical` and what the planner predicts for it."""
    schedule = choose("hierarchical", group.topology, 4 * count)
    tensor = group.shared_tensor(count)
    taken = []
    for _ in range(repeats):
        group.barrier()
        begin = time.perf_counter()
        group.all_reduce(tensor, strategy=schedule)
        taken.append(time.perf_counter() - begin)
    assert tensor.eq(0).all()
    return sorted(taken)[len(taken) // 2], simulate(schedule, group.topology, 4 * count).seconds


def main() -> None:
    torch.set_num_threads(1)
    with Group.from_environment(timeout_s=30) as group:
        check_operations(group)
        topology = group.probe(budget_s=2.0)
        tensor = torch.full((70_001,), float(group.rank))
        assert group.all_reduce(tensor, strategy="hierarchical").eq(6).all()
        assert group.all_reduce(tensor, "mean", strategy="auto").eq(6).all()
        measured_s, predicted_s = measure(group, 1 << 20, 3)
        machines = {node.name: node.machine for node in topology.nodes}
        between = [link.bytes_per_s for link in topology.links if machines[link.source] != machines[link.target]]
        print(
            json.dumps({"machines": machines, "between": between, "measured_s": measured_s, "predicted_s": predicted_s})
        )


if __name__ == "__main__":
    main()
