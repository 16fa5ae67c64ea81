"""Worker 1 dies after the last step; worker 0 comes to its end once worker 1 was started again: FOLDER."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import gradtide
from gradtide.environment import read_environment

came = Path(sys.argv[1]) / "came"
if read_environment().incarnation:
    came.touch()
net = torch.nn.Linear(2, 1)
model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1))
print("trains")
model(torch.ones(2, 2)).sum().backward()
model.step()
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
while not came.exists():
    time.sleep(0.01)
