"""What torch asks of a backend from 2.14 on, and what 2.13 can't do: groups of several backends, other members."""

import os
import signal
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from process_groups import process_group

from clock import at_most
from gradtide.collective.c10d.versions import BACKENDS_IN_PYTHON
from gradtide.errors import ConfigError, Mismatch, PeerLost

ORDERS = ("cpu:gradtide,cuda:gloo", "cuda:gloo,cpu:gradtide")


def beside_gloo(rank, size, path, backend):
    if not BACKENDS_IN_PYTHON:
        if rank:  # one is enough: refused, it would leave while others are still connecting to Gloo
            return
        with pytest.raises(ConfigError, match=r"would forget cuda:gloo beside cpu:gradtide.*new_group\(backend='gloo'"):
            dist.init_process_group(backend, store=dist.FileStore(path, 1), rank=0, world_size=1)
        assert not dist.is_initialized()
        return
    with process_group(rank, size, path, backend):
        group = dist.group.WORLD
        assert group._get_backend(torch.device("cuda")).name() == "gloo"
        assert isinstance(group._get_backend(torch.device("cpu")), torch._C._distributed_c10d.Backend)
        assert group._get_backend(torch.device("cpu")).getBackendName() == "gradtide"
        check_operations(rank, size)
        part = dist.new_group([0, 1], timeout=timedelta(seconds=30))
        if rank < 2:
            dist.all_reduce(tensor := torch.full((3,), rank + 1.0), group=part)
            assert tensor.tolist() == [3.0] * 3
        with pytest.raises(ConfigError, match="name the source"):
            dist.recv(torch.ones(1))
        with pytest.raises(Mismatch, match=r"ranks? 1"):
            dist.all_reduce(torch.ones(3 + (rank == 1)))


def check_operations(rank, size):
    """Each goes through torch's own group to ours and back."""
    dist.all_reduce(tensor := torch.full((1000,), rank + 1.0))
    assert tensor.eq(sum(range(1, size + 1))).all()
    dist.broadcast(tensor := torch.full((5,), float(rank)), size - 1)
    assert tensor.eq(size - 1).all()
    dist.all_gather(rows := [torch.zeros(2) for _ in range(size)], torch.full((2,), float(rank)))
    assert [row[0].item() for row in rows] == list(range(size))
    dist.all_gather_into_tensor(whole := torch.zeros(2 * size), torch.full((2,), float(rank)))
    assert whole.tolist() == torch.stack(rows).view(-1).tolist()
    dist.reduce_scatter_tensor(mine := torch.zeros(2), torch.arange(2.0 * size))
    assert mine.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
    dist.all_to_all_single(given := torch.zeros(size), torch.full((size,), float(rank)))
    assert given.tolist() == list(range(size))
    dist.all_gather_object(said := [None] * size, {"rank": rank})
    assert said == [{"rank": other} for other in range(size)]
    work = dist.all_reduce(tensor := torch.ones(7), async_op=True)
    work.get_future().wait()
    work.wait()
    assert tensor.eq(size).all()
    if rank == 0:
        dist.send(torch.full((3,), 5.0), 1)
    elif rank == 1:
        dist.recv(tensor := torch.zeros(3), 0)
        assert tensor.eq(5).all()
    dist.barrier()


@pytest.mark.parametrize("backend", ORDERS)
def test_another_device_has_its_backend_beside_gradtide_or_it_is_refused(fresh, tmp_path, backend):
    """In processes of their own: torch counts the groups that it failed to make."""
    fresh.run(beside_gloo, 3, str(tmp_path / "store"), backend)


def with_nan(rank, size, path):
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    with process_group(rank, size, path), pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.full((3,), float("nan")))


@pytest.mark.skipif(not BACKENDS_IN_PYTHON, reason="torch 2.13 does not look for NaN")
def test_what_torch_looks_for_in_tensors_it_finds_over_gradtide(fresh, tmp_path):
    fresh.run(with_nan, 2, str(tmp_path / "store"))


def on_another_device(rank, size, path):
    for backend in ("cuda:gradtide", "cpu:gloo,cuda:gradtide"):
        with pytest.raises(ConfigError, match="takes CPU tensors, and cuda:gradtide was asked for"):
            dist.init_process_group(backend, store=dist.FileStore(path, size), rank=rank, world_size=size)


def test_gradtide_is_refused_as_the_backend_of_an_accelerator(fresh, tmp_path):
    """On one rank: where Gloo comes first, one of several may be refused while another is still connecting to it."""
    fresh.run(on_another_device, 1, str(tmp_path / "store"))


# --- other members ---


def reconfigure(uuid, handles, timeout_s=30.0):
    """As torch 2.14 calls it."""
    limit = timedelta(seconds=timeout_s)
    if hasattr(dist, "_reconfigure"):
        dist._reconfigure(uuid, handles, timeout=limit).wait()
    else:
        dist.group.WORLD.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=limit)).wait()


def collect(path, name, members):
    """Everybody's handle, in the order of `members`, through files."""
    store = dist.FileStore(f"{path}-handles", -1)
    store.set(f"{name} {os.getpid()}", dist.group.WORLD.get_reconfigure_handle())
    return [store.get(f"{name} {member}").decode() for member in members]


def check_sum(members):
    """Of all who are there, by what only they have."""
    dist.all_reduce(tensor := torch.tensor([float(os.getpid())] * 5, dtype=torch.float64))
    assert tensor.eq(sum(members)).all()
    assert dist.get_world_size() == dist.group.WORLD.size() == len(members)
    assert dist.get_rank() == dist.group.WORLD.rank() == members.index(os.getpid())


def pids(path, rank, size):
    store = dist.FileStore(f"{path}-pids", -1)
    store.set(str(rank), str(os.getpid()))
    return [int(store.get(str(other))) for other in range(size)]


def shrink_and_grow(rank, size, path):
    members = pids(path, rank, size)
    mine = os.getpid()
    with process_group(rank, size, path):
        assert dist.group.WORLD.supports_reconfigure
        check_sum(members)
        handles = collect(path, "first", members)
        reconfigure(100 + rank, [handles[rank]])
        check_sum([mine])
        reconfigure(200, handles[::-1])
        check_sum(members[::-1])
        half = members[:2] if rank < 2 else members[2:]
        reconfigure(300 + rank // 2, [handles[members.index(member)] for member in half])
        check_sum(half)
        reconfigure(400, set(handles))
        dist.all_reduce(tensor := torch.ones(1))
        assert tensor.item() == size
        dist.barrier()


def test_members_of_a_group_change_in_place(ranks, tmp_path):
    ranks.run(shrink_and_grow, 4, str(tmp_path / "store"))


def refused(rank, size, path):
    members = pids(path, rank, size)
    with process_group(rank, size, path):
        handles = collect(path, "first", members)
        for given, text in (
            (["gloo:0:-1:0:127.0.0.1:1", *handles], "is no handle of gradtide's"),
            ([*handles, handles[0]], "one handle is there twice"),
            ([handles[1 - rank]], "this process's handle is not among those"),
        ):
            with pytest.raises(ConfigError, match=text):
                reconfigure(1, given)
            check_sum(members)  # nothing has changed
        reconfigure(1, handles)
        with pytest.raises(ConfigError, match="uuid 1 was already used"):
            reconfigure(1, handles)
        check_sum(members)
        if rank:
            with pytest.raises(Mismatch, match="was given other handles"):
                reconfigure(2, [handles[0], handles[1], f"gradtide:{'0' * 16}@127.0.0.1:1"])
        else:
            with pytest.raises(RuntimeError):  # who waits for a member that went another way is told
                reconfigure(2, handles, timeout_s=2.0)


def test_a_mistaken_reconfiguration_is_refused_and_changes_nothing(ranks, tmp_path):
    ranks.run(refused, 2, str(tmp_path / "store"))


def without_members(rank, size, path):
    members = pids(path, rank, size)
    store = dist.FileStore(path, size)
    dist.init_process_group("gradtide", store=store, rank=rank, world_size=size, enable_reconfigure=True)
    assert dist._supports_reconfigure()
    with pytest.raises(ConfigError, match="has no members yet: exchange"):
        dist.all_reduce(torch.ones(1))
    reconfigure(1, collect(path, "first", members))
    check_sum(members)
    dist.destroy_process_group()


@pytest.mark.skipif(not BACKENDS_IN_PYTHON, reason="torch 2.13 has no enable_reconfigure")
def test_a_group_may_be_made_before_its_members_are_known(ranks, tmp_path):
    ranks.run(without_members, 3, str(tmp_path / "store"))


def lose_the_first(rank, size, path):
    members = pids(path, rank, size)
    with process_group(rank, size, path):
        handles = collect(path, "first", members)
        check_sum(members)
        if rank == 0:  # who holds the store in which the group was made
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLost, match="rank 0"):
            dist.all_reduce(torch.ones(5))
        reconfigure(2, handles[1:])
        check_sum(members[1:])


def test_a_group_goes_on_without_the_rank_that_held_its_store(fresh, tmp_path):
    fresh.start(lose_the_first, 3, str(tmp_path / "store"))
    for rank in (1, 2):
        fresh.answer(rank, timeout_s=at_most(60))
