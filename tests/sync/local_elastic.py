"""What jobs of local steps train that lose and gain workers."""

import torch
from torch import nn

import gradtide

OUTER = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)
BATCH, BATCHES = 13, 10  # in an epoch


def build(*, normed):
    torch.manual_seed(0)
    layers = [nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3), *([nn.BatchNorm1d(3)] if normed else [])]
    net = nn.Sequential(*layers).to(torch.float64)
    return net, optimizer(net.parameters())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def samples():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH * BATCHES, 20, dtype=torch.float64, generator=generator)
    return x, x[:, :3] * x[:, 3:6]


def batches():
    return list(zip(*(tensor.split(BATCH) for tensor in samples()), strict=True))


def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples()), batch_size=BATCH)
