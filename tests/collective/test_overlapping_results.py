"""Results between hosts that lie over what is given."""

import torch
from cases import same

from gradtide.collective.groups.group import Group


def overlap_between_hosts(rank, size):
    """Where a result lies over what is given, in its own row or not: which of them are not as they are elsewhere."""
    wrong = []
    with Group.from_environment(timeout_s=30) as group:
        for count in (10, 20_000, 400_000):
            inputs = [torch.randn(size, count, generator=torch.Generator().manual_seed(r)) for r in range(size)]
            sums, firsts = group.reduce_scatter(inputs[rank]), torch.stack([tensor[0] for tensor in inputs])
            crossed = torch.stack([tensor[rank] for tensor in inputs])
            for turn in range(3):  # the first is planned, the others go the shortest way

                def check(what, got, wanted, count=count, turn=turn):
                    wrong.extend([] if same(got, wanted) else [(what, count, turn)])

                group.all_to_all(whole := inputs[rank].clone(), out=whole)
                check("all_to_all", whole, crossed)
                flat, sizes = inputs[rank].flatten().clone(), [count] * size
                group.all_to_all_split(flat, sizes, flat, sizes)
                check("all_to_all_split", flat.view(size, count), crossed)
                for row in (rank, (rank + 1) % size):
                    whole = inputs[rank].clone()
                    group.reduce_scatter(whole, out=whole[row])
                    check("reduce_scatter", whole[row], sums)
                group.all_gather((whole := inputs[rank].clone())[0], out=whole)
                check("all_gather", whole, firsts)
                whole = inputs[rank].clone()
                group.gather(whole[0], 1, out=whole if rank == 1 else None)
                check("gather", whole, firsts if rank == 1 else inputs[rank])
                whole = inputs[rank].clone()
                group.scatter(whole[1], whole if rank == 0 else None, 0)
                check("scatter", whole[1], inputs[0][rank])
    return wrong


def test_results_between_hosts_may_lie_over_what_is_given(far):
    assert far.run(overlap_between_hosts, 4) == [[]] * 4
