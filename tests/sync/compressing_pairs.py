"""What the workers' processes do that compress, and do something else besides."""

import numpy as np
import torch
from balanced import RandomShares
from compressing import SHAPES, Given, residuals, whole_numbers

import gradtide
from gradtide.collective import Group
from gradtide.sync import Job

NAMES = [f"values.{index}" for index in range(len(SHAPES))]


def flat(tensors):
    return [tensor.detach().double().numpy().ravel().copy() for tensor in tensors]


def unequal(rank, size, name, options, store):
    """Parts of batches that differ in size at every step, some without samples: what was given, by its weight; where
    the parameters are; what is left out here."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        job, net = Job.of(group, store), Given(torch.float64)
        rule = torch.optim.SGD(net.parameters(), lr=1.0)
        model = gradtide.DataParallel(net, rule, job=job, **options)
        given = [np.zeros(int(np.prod(s))) for s in SHAPES]
        batches = [torch.full((24,), step) for step in range(12)]
        for step, _part in enumerate(gradtide.shard(batches, balance=RandomShares(job), job=job)):
            gradients = whole_numbers(rank, step)
            for total, gradient in zip(given, flat(gradients), strict=True):
                total += job.weight * gradient
            model(gradients).backward()
            model.step()
        moved, left = flat(-p for p in net.values), residuals(model)
        if store is not None:
            moved, left = on_servers(model, store)
        group.barrier()
        model.close()
        return given, moved, left


def on_servers(model, address):
    """What they have, not what they have told; and what this worker has left out."""
    way = model._synchroniser.way
    mine, keys = way.store.residuals(), [way._lodging.key(name) for name in NAMES]
    with gradtide.connect(address) as visitor:
        moved = flat(-visitor.pull(key) for key in keys)
    sizes = [int(np.prod(s)) for s in SHAPES]
    return moved, [flat([mine[k]])[0] if k in mine else np.zeros(n) for k, n in zip(keys, sizes, strict=True)]


def clipped(rank, size, name, options, store, clip_norm):
    """What came each step, where that should have moved the parameters, where they are, what was given, and left."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(torch.float64)
        rule = torch.optim.SGD(net.parameters(), lr=0.5)
        model = gradtide.DataParallel(net, rule, job=Job.of(group, store), clip_norm=clip_norm, **options)
        wanted, came, given = ([np.zeros(int(np.prod(s))) for s in SHAPES] for _ in range(3))
        for step in range(8):
            gradients = whole_numbers(rank, step)
            model(gradients).backward()
            here = flat(p.grad for p in net.values)
            norm = np.sqrt(sum((g**2).sum() for g in here))
            for index, gradient in enumerate(flat(gradients)):
                given[index] += gradient / size
                came[index] += here[index]
                wanted[index] -= 0.5 * here[index] * min(1.0, clip_norm / (norm + 1e-6))
            model.step()
        left = residuals(model) if store is None else on_servers(model, store)[1]
        moved = flat(net.values)
        group.barrier()
        model.close()
        return wanted, moved, came, given, left
