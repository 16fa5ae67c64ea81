"""One contender of `bench train`, in a process of its own: train KIND THREADS MODEL BATCH PROCESSES STORE RANK."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from gradtide.bench.contender import repeating, serve
from gradtide.bench.peers.training import LR, Batch, plain_step, random_batch
from gradtide.collective import sum_over_devices
from gradtide.parallel import DevicePool, find_devices, replicate, split_batch, train_batch
from gradtide.train.models import build_model

Repeat = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class TrainTask:
    """What all contenders do alike."""

    model: nn.Module
    batch: Batch
    processes: int
    store: str
    rank: int


def plain(job: TrainTask) -> Repeat:
    return repeating(plain_step(job.model, job.batch))


def textbook(job: TrainTask) -> Repeat:
    """One device after the other, then an all-reduce of each parameter's gradient on device 0."""
    devices = find_devices(["cpu:0", "cpu:1"])
    replicas = [replica.module for replica in replicate(job.model, devices)]

    def step() -> None:
        for module, shard in zip(replicas, split_batch(job.batch, devices), strict=True):
            (functional.cross_entropy(module(shard.inputs), shard.targets) * shard.weight).backward()
        for parameters in zip(*(module.parameters() for module in replicas), strict=True):
            sum_over_devices([p.grad for p in parameters if p.grad is not None], "root")
        with torch.no_grad():
            for module in replicas:
                for parameter in module.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(LR * parameter.grad)
                    parameter.grad.zero_()

    return repeating(step)


def ddp(job: TrainTask) -> Repeat:
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{job.store}", rank=job.rank, world_size=job.processes)
    shares = [torch.tensor_split(part, job.processes)[job.rank] for part in job.batch]
    model = nn.parallel.DistributedDataParallel(job.model, gradient_as_bucket_view=True)
    return repeating(plain_step(model, (shares[0], shares[1])))


def unsynchronised(job: TrainTask) -> Repeat:
    """The ceiling: each device trains its own model on its own shard and never waits for the other."""
    devices = find_devices(["cpu:0", "cpu:1"])
    pool = DevicePool(devices)
    shards = split_batch(job.batch, devices)
    models = [replica.module for replica in replicate(job.model, devices)]
    steps = [repeating(plain_step(m, (s.inputs, s.targets))) for m, s in zip(models, shards, strict=True)]
    return lambda repetitions: pool.run(lambda index: steps[index](repetitions))


def gradtide(job: TrainTask) -> Repeat:
    devices = find_devices(["cpu:0", "cpu:1"])
    pool = DevicePool(devices)
    replicas = replicate(job.model, devices)
    optimizers = [torch.optim.SGD(replica.module.parameters(), lr=LR) for replica in replicas]

    def step() -> None:
        shards = split_batch(job.batch, devices)
        train_batch(replicas, optimizers, shards, functional.cross_entropy, pool, "sharded")

    return repeating(step)


KINDS = {"plain": plain, "textbook": textbook, "ddp": ddp, "unsynchronised": unsynchronised, "gradtide": gradtide}


def main() -> None:
    kind, threads, model, batch_size, processes, store, rank = sys.argv[1:]
    torch.set_num_threads(int(threads))
    job = TrainTask(build_model(model, 0), random_batch(int(batch_size)), int(processes), store, int(rank))
    repeat = KINDS[kind](job)
    if kind == "ddp":
        import torch.distributed as dist

        serve(repeat, dist.barrier)
        dist.destroy_process_group()
    else:
        serve(repeat)


if __name__ == "__main__":
    main()
