"""PyTorch's ways to train, over gradtide, against one process that trains alone: the same to 1e-10 in float64."""

import copy

import pytest
import torch
import torch.distributed as dist
from process_groups import process_group
from torch.nn.parallel import DistributedDataParallel

import gradtide
from documented import blocks
from gradtide.collective import Group

STEPS, BATCH = 4, 8


class Net(torch.nn.Module):
    """Three layers, and one that nobody uses."""

    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.middle, self.last = (torch.nn.Linear(6, 8), torch.nn.Linear(8, 6), torch.nn.Linear(6, 2))
        if unused:
            self.unused = torch.nn.Linear(3, 3)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def batches():
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        yield (torch.randn(BATCH, n, generator=generator, dtype=torch.float64) for n in (6, 2))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def alone(weight=lambda step: 1.0):
    """What a single process comes to. weight: of each step's loss."""
    model = Net()
    optim = optimizer(model.parameters())
    for step, (x, y) in enumerate(batches()):
        optim.zero_grad()
        (weight(step) * loss_of(model, x, y)).backward()
        optim.step()
    return model


def train(model, rank, size, optim=None):
    optim = optim or optimizer(model.parameters())
    for x, y in batches():
        optim.zero_grad()
        loss_of(model, x[rank::size], y[rank::size]).backward()
        optim.step()


def assert_same(module, expected):
    for (name, mine), theirs in zip(module.named_parameters(), expected.parameters(), strict=False):
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


DDP = {
    "plain": {},
    "many buckets": {"bucket_cap_mb": 0.0001},
    "bucket views": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "find unused": {"find_unused_parameters": True},
}


def with_ddp(rank, size, path, name):
    with process_group(rank, size, path):
        model = Net(unused=name == "find unused")
        train(DistributedDataParallel(model, **DDP[name]), rank, size)
        assert_same(model, alone())


@pytest.mark.quick
@pytest.mark.parametrize("name", DDP)
def test_ddp(ranks, tmp_path, name):
    ranks.run(with_ddp, 2, str(tmp_path / "store"), name)


def accumulating(rank, size, path):
    with process_group(rank, size, path):
        model = Net()
        ddp, optim = DistributedDataParallel(model), optimizer(model.parameters())
        for x, y in batches():
            optim.zero_grad()
            halves = [(part[rank::size][:2], part[rank::size][2:]) for part in (x, y)]
            (x1, x2), (y1, y2) = halves
            with ddp.no_sync():
                (loss_of(ddp, x1, y1) / 2).backward()
            (loss_of(ddp, x2, y2) / 2).backward()
            optim.step()
        assert_same(model, alone())


def test_ddp_without_synchronising_at_first(ranks, tmp_path):
    ranks.run(accumulating, 2, str(tmp_path / "store"))


def joining(rank, size, path):
    """Rank 1 runs out of data two steps early: what rank 0 does then counts half."""
    with process_group(rank, size, path):
        model = Net()
        ddp, optim = DistributedDataParallel(model), optimizer(model.parameters())
        with ddp.join():
            for step, (x, y) in enumerate(batches()):
                if rank == 0 or step < STEPS - 2:
                    optim.zero_grad()
                    halves = (rank, size) if step < STEPS - 2 else (0, 1)
                    loss_of(ddp, x[halves[0] :: halves[1]], y[halves[0] :: halves[1]]).backward()
                    optim.step()
        if rank == 0:
            assert_same(model, alone(lambda step: 1.0 if step < STEPS - 2 else 0.5))


def test_ddp_with_a_rank_that_runs_out_of_data(ranks, tmp_path):
    ranks.run(joining, 2, str(tmp_path / "store"))


def compiled(rank, size, path):
    with process_group(rank, size, path):
        model = Net()
        train(torch.compile(DistributedDataParallel(model), backend="eager"), rank, size)
        assert_same(model, alone())


def test_ddp_compiled(ranks, tmp_path):
    ranks.run(compiled, 2, str(tmp_path / "store"))


def zero(rank, size, path):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with process_group(rank, size, path):
        model = Net()
        optim = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.2, momentum=0.9)
        train(DistributedDataParallel(model), rank, size, optim)
        assert_same(model, alone())


def test_the_zero_redundancy_optimizer(ranks, tmp_path):
    ranks.run(zero, 2, str(tmp_path / "store"))


def fully_sharded(rank, size, path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with process_group(rank, size, path):
        model, mesh = Net(), init_device_mesh("cpu", (size,))
        for layer in (model.first, model.middle, model.last, model):
            fully_shard(layer, mesh=mesh)
        train(model, rank, size)
        assert_same(model, alone())


def test_fsdp2(ranks, tmp_path):
    ranks.run(fully_sharded, 2, str(tmp_path / "store"))


def tensor_parallel(rank, size, path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with process_group(rank, size, path):
        mesh = init_device_mesh("cpu", (size,))
        plan = {"first": ColwiseParallel(), "middle": RowwiseParallel()}
        model = parallelize_module(Net(), mesh, plan)
        train(model, 0, 1)
        assert_same(model, alone())


def test_tensor_parallel(ranks, tmp_path):
    ranks.run(tensor_parallel, 2, str(tmp_path / "store"))


def pipelined(rank, size, path, schedule):
    from torch.distributed import pipelining

    with process_group(rank, size, path):
        whole = Net()
        part = torch.nn.Sequential(whole.first, torch.nn.Tanh()) if rank == 0 else None
        part = part or torch.nn.Sequential(whole.middle, torch.nn.Tanh(), whole.last)
        stage = pipelining.PipelineStage(part, rank, size, torch.device("cpu"))
        run = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        optim = optimizer(part.parameters())
        for x, y in batches():
            optim.zero_grad()
            run.step(x) if rank == 0 else run.step(target=y)
            optim.step()
        expected = alone()
        layers = (expected.first,) if rank == 0 else (expected.middle, expected.last)
        assert_same(part, torch.nn.Sequential(*copy.deepcopy(layers)))


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipelining(ranks, tmp_path, schedule):
    ranks.run(pipelined, 2, str(tmp_path / "store"), schedule)


def power_sgd(rank, size, path):
    """Its hook waits for all-reduces inside callbacks of others, and there are six buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    with process_group(rank, size, path):
        torch.manual_seed(3)
        model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(6)))
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.005)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for step in range(6):
            ddp(torch.full((4, 40), float(rank + step))).sum().backward()
        grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_gather(both := [torch.empty_like(grads) for _ in range(size)], grads)
        return both[0].equal(both[1])


def test_the_power_sgd_hook_with_several_buckets_does_not_hang(ranks, tmp_path):
    assert ranks.run(power_sgd, 2, str(tmp_path / "store")) == [True, True]


def hooked(rank, size, path):
    with process_group(rank, size, path, backend="gloo"), Group.beside() as group:
        model = Net()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        ddp.register_comm_hook(group, gradtide.ddp_hook)
        train(ddp, rank, size)
        assert_same(model, alone())


def test_the_hook_for_ddp_over_another_process_group(ranks, tmp_path):
    ranks.run(hooked, 2, str(tmp_path / "store"))


def hooked_as_shown(rank, size, path, snippet):
    names = {"gradtide": gradtide, "DistributedDataParallel": DistributedDataParallel, "model": Net()}
    with process_group(rank, size, path, backend="gloo"):
        exec(snippet, names)
        train(names["model"], rank, size)
        assert_same(names["model"].module, alone())


def test_the_page_s_own_lines_hook_ddp(ranks, tmp_path):
    (snippet,) = (block.text for block in blocks("docs/c10d.md") if "register_comm_hook" in block.text)
    assert "gradtide.Group.beside()" in snippet
    ranks.run(hooked_as_shown, 2, str(tmp_path / "store"), snippet)
