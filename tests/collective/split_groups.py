"""Process groups that are split: by the group's own method, and by torch's function."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.distributed as dist


def check_parts(rank, size):
    """Even and odd ranks, whatever their hosts; then a part of a part."""
    whole = dist.group.WORLD
    mine = [other for other in range(size) if other % 2 == rank % 2]
    part = whole.split_group(mine)
    assert (part.rank(), part.size(), part.name()) == (rank // 2, size // 2, "gradtide")
    part.allreduce([tensor := torch.full((1001,), float(rank))]).wait()
    assert tensor.eq(sum(mine)).all()
    assert whole.split_group([0]).size() == 1 if rank == 0 else whole.split_group([0]) is None
    with pytest.raises(ValueError, match="are no part of a group with ranks 0 to"):
        whole.split_group([size])
    part.shutdown()
    _check_torchs_function(rank, size, mine)
    dist.all_reduce(tensor := torch.ones(3))
    assert tensor.eq(size).all()


def _check_torchs_function(rank, size, mine):
    with _allowed():
        part = dist.split_group(split_ranks=[list(range(0, size, 2)), list(range(1, size, 2))], group_desc="halves")
        pair = dist.split_group(split_ranks=[[1, 0]])
    assert (dist.get_rank(part), dist.get_world_size(part), part.group_desc) == (rank // 2, len(mine), "halves")
    assert dist.get_process_group_ranks(part) == mine
    dist.all_reduce(tensor := torch.full((5,), float(rank)), group=part)
    assert tensor.eq(sum(mine)).all()
    dist.broadcast(tensor := torch.full((5,), float(rank)), mine[-1], group=part)
    assert tensor.eq(mine[-1]).all()
    if rank > 1:
        assert pair in (None, dist.GroupMember.NON_GROUP_MEMBER)  # torch 2.13 says the first
    else:
        dist.all_reduce(tensor := torch.ones(1), group=pair)
        assert tensor.item() == 2
        dist.destroy_process_group(pair)
    dist.destroy_process_group(part)


@contextlib.contextmanager
def _allowed():
    """Before 2.15 torch refuses it without an accelerator, whatever the backend: there it takes the CPU for one."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
        yield
        return
    with pytest.raises(RuntimeError, match="not safe to split"):
        dist.split_group(split_ranks=[[0]])
    cpu = torch.device("cpu", 0)
    with (
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
        mock.patch.object(torch.accelerator, "current_accelerator", return_value=cpu),
    ):
        dist.group.WORLD.bound_device_id = cpu
        yield
        dist.group.WORLD.bound_device_id = None
