"""What the workers' processes of tests of local steps over servers do."""

import os
import signal

import torch
import training
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.events import LocalWindow
from gradtide.sync import Job


def train(rank, size, address, model, optimizer, steps, local, batch=29):
    """As one of `size` workers: parameters when all have met, the model's words, and the windows of an asynchronous
    run."""
    torch.set_num_threads(1)
    net = training.build(model, torch.float64)
    if rank:
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.5)
    job = Job(rank, size, address)
    rule, heard = training.OPTIMIZERS[optimizer](net.parameters(), 0.05), []
    wrapped = gradtide.DataParallel(net, rule, local, job=job, emit=heard.append)
    for x, y in gradtide.shard(training.batches(torch.float64, steps, batch), job=job):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    explained = wrapped.explain()
    wrapped.close()
    windows = [event for event in heard if isinstance(event, LocalWindow)]
    return [p.detach().clone() for p in net.parameters()], explained, windows


# --- workers with batches of their own ---

OUTER = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


def small_net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    return net, adamw(net.parameters())


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def own_batch(player, step):
    generator = torch.Generator().manual_seed(1000 * player + step)
    x = torch.randn(2 + (player + step) % 4, 5, dtype=torch.float64, generator=generator)
    return x, x[:, :2] * x[:, 2:4]


# --- whole numbers ---


def counting_model(address, name, job, every, emit=None):
    """Each step adds 1 to every number, so that the base counts the steps whose windows are in it."""
    net = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    rule = torch.optim.SGD(net.parameters(), lr=1.0)
    over = gradtide.Servers("async", address, name=name)
    return gradtide.DataParallel(net, rule, gradtide.Local(every, over=over), job=job)


def count(model, steps):
    for _ in range(steps):
        (-model(torch.ones(1, 3, dtype=torch.float64)).sum()).backward()
        model.step()


def count_and_die(pipe, address, name, incarnation, every, windows):
    """So many windows, and then it dies in the middle of the next one."""
    torch.set_num_threads(1)
    model = counting_model(address, name, Job(1, 2, address, incarnation=incarnation), every)
    count(model, windows * every + every - 1)
    pipe.send(windows * every)
    os.kill(os.getpid(), signal.SIGKILL)
