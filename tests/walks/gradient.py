"""A worker that takes one step by all-reduce while everything is recorded: gradient.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch._dynamo
from recorder import Recorder

import gradtide
from gradtide.environment import read_environment

launch = read_environment().launch
assert launch is not None
folder = Path(sys.argv[1]) / str(launch.rank)
folder.mkdir()
recorder = Recorder(folder, "worker", each_thread=True)
recorder.install()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "ring")
whole = []


def wait_when_it_left(parameter):
    """Who waits for what has not begun does it itself: here the background thread does."""
    whole.append(parameter)
    if len(whole) == 4 * len(list(net.parameters())):
        recorder.wait_for_thread("gradtide-lane")


for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(wait_when_it_left)
for turn in range(4):  # parameters are compared between workers in the first three
    loss = model(torch.ones(4, 8)).sum()
    recorder.flag[0] = turn == 3
    loss.backward()
    model.step()
recorder.flag[0] = 0
model.close()
recorder.write()
