"""What the workers' processes of tests of local steps over servers do."""

import torch
import training
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.sync import Job


def train(rank, size, address, model, optimizer, steps, local, batch=29):
    """As one of `size` workers: parameters when all have met, the model's words, and their sum at each step."""
    torch.set_num_threads(1)
    net = training.build(model, torch.float64)
    if rank:
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.5)
    job = Job(rank, size, address)
    wrapped = gradtide.DataParallel(net, training.OPTIMIZERS[optimizer](net.parameters(), 0.05), local, job=job)
    sums = []
    for x, y in gradtide.shard(training.batches(torch.float64, steps, batch), job=job):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        sums.append(sum(p.detach().sum().item() for p in net.parameters()))
    explained = wrapped.explain()
    wrapped.close()
    return [p.detach().clone() for p in net.parameters()], explained, sums
