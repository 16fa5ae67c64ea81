"""A part of a group: some of its ranks, in a group of their own."""

import pytest
import torch
from ranks import own

from gradtide.collective import Group
from gradtide.errors import ConfigError, PeerTimeout


def check_parts(group):
    """Ranks 0 and 2, and 1 and 3; then all of them, while a sum of the whole group is under way."""
    evens = group.part([2, 0] if group.rank % 2 == 0 else [1, 3])
    everybody = group.part(range(group.size))
    assert (evens.rank, evens.size) == (group.rank // 2, 2)
    waiting = group.all_reduce(torch.ones(3), async_op=True) if group.rank else None
    assert evens.all_reduce(torch.tensor([float(group.rank)])).item() == (2 if group.rank % 2 == 0 else 4)
    assert everybody.all_reduce(torch.full((1000,), float(group.rank))).eq(6).all()
    sent = everybody.send(torch.full((200_000,), float(group.rank)), (group.rank + 1) % 4, tag=7, async_op=True)
    got = everybody.recv(torch.empty(200_000), (group.rank - 1) % 4, tag=7)
    assert got.eq((group.rank - 1) % 4).all()
    sent.wait(20)
    result = waiting.wait(20) if waiting else group.all_reduce(torch.ones(3))
    assert result.eq(4).all()
    for one in (evens, everybody):
        one.close()


def on_one_host(rank, size, name):
    with Group.join(own(name), rank, size, timeout_s=20) as group:
        check_parts(group)
        with pytest.raises(ConfigError, match="are no part of a group with ranks 0 to 3"):
            group.part([0, 4])
        with pytest.raises(ConfigError, match=f"rank {rank} is not one of"):
            group.part([other for other in range(4) if other != rank])
        group.barrier()
        if rank in (1, 3):
            part = group.part([1, 3])
            if rank == 3:
                with pytest.raises(PeerTimeout, match="rank 1 "):  # as the whole group calls it
                    part.all_reduce(torch.ones(1), timeout_s=0.2)
        group.barrier()


def on_two_hosts(rank, size):
    with Group.from_environment(timeout_s=30) as group:
        check_parts(group)


def test_parts_work_beside_each_other_and_name_ranks_as_the_whole_does(ranks):
    ranks.run(on_one_host, 4, "parts")


def test_parts_of_ranks_on_two_hosts(far):
    far.run(on_two_hosts, 4)
