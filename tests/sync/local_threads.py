"""Workers that are threads of the tests' own process, for local steps over servers that are there already."""

import threading

import torch
import training
from torch import nn

from gradtide import Servers

_SEEDED = threading.Lock()  # threads share torch's generator


def at(address, mode="bsp", **options):
    """A training of its own at servers that many use."""
    return Servers(mode, address, name=training.new_name(), **options)


def in_threads(size, work):
    """What work(rank) returns, or the error it raises, for each worker."""
    found = [None] * size

    def keep(rank):
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=keep, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def batch(rank, step, samples=4):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(samples, 3, dtype=torch.float64, generator=generator)


def build(rank=0):
    with _SEEDED:
        torch.manual_seed(rank)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def advance(model, rank, steps, first=0):
    for step in range(first, first + steps):
        model(batch(rank, step)).square().mean().backward()
        model.step()


def values(net):
    return [p.detach().clone() for p in net.parameters()]


def alike(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def close(a, b, by=1e-14):
    return all(torch.allclose(x, y, rtol=0, atol=by) for x, y in zip(a.parameters(), b.parameters(), strict=True))
