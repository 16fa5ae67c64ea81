"""What a job that grows and shrinks trains."""

import torch
from torch import nn

FROZEN = range(580, 590)  # batches, counted from 1, in which the first layer is not trained


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3)).to(torch.float64)
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def batches(steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(13, 20, dtype=torch.float64, generator=generator)
        yield x, x[:, :3] * x[:, 3:6]
