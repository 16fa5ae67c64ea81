"""A user's script, started by `gradtide run`: trains on a DataLoader that nobody has seeded ("seeded": one that is, by
epochs of the script's own), notes which samples it was given in which batch, and dies where the test wants it to: in
the middle of a step, or after it.

shuffled_script.py FOLDER LOADER (WORKER:INCARNATION:STEP[+])...
"""

import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.environment import read_environment
from gradtide.sync import current_job, reduce

folder, kind, *deaths = sys.argv[1:]
around, job = read_environment(), current_job()
number = around.launch.rank
torch.set_num_threads(1)


class Lazy:
    def __iter__(self):
        order = torch.randperm(30)
        for begin in range(0, 30, 5):
            yield order[begin : begin + 5].tolist()


def huggingface():
    import datasets

    return DataLoader(datasets.Dataset.from_dict({"x": list(range(30))}).with_format("torch"), 5, shuffle=True)


data = TensorDataset(torch.arange(30.0))
loader = {
    "seeded": lambda: DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(0)),
    "shuffle": lambda: DataLoader(data, 5, shuffle=True),
    "processes": lambda: DataLoader(data, 5, shuffle=True, num_workers=1, persistent_workers=True),
    "lazy": lambda: DataLoader(data, batch_sampler=Lazy()),
    "huggingface": huggingface,
}[kind]()
steps = 0
leave = reduce.Reduce._leave


def dying(*arguments, **named):
    if f"{number}:{around.incarnation}:{steps}" in deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return leave(*arguments, **named)


reduce.Reduce._leave = dying
net = torch.nn.Linear(1, 1)
model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=1e-4), share_parameters=False)
with open(f"{folder}/{number}.{around.incarnation}", "w", buffering=1) as notes:
    for epoch in range(model.epoch if kind == "seeded" else 0, 3):
        for batch in gradtide.shard(loader):
            x = batch["x"].float() if isinstance(batch, dict) else batch[0]
            steps += 1
            samples = " ".join(str(int(one)) for one in x) if job.share.samples else ""
            print(job.batches, job.generation, samples, file=notes)
            model(x[:, None]).square().mean().backward()
            model.step()
            if f"{number}:{around.incarnation}:{steps}+" in deaths:
                os.kill(os.getpid(), signal.SIGKILL)
        if kind == "seeded":
            model.epoch = epoch + 1
print("done", flush=True)
model.close()
