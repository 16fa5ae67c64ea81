"""One process that trains a wide model within a limit of memory: WAY RANK MEETING CGROUP ("" for none).

It joins its cgroup before torch is imported, so that all of it counts. Prints the losses of two steps as JSON.
"""

import json
import os
import sys
from pathlib import Path

WIDTH, LAYERS, BATCH = 2560, 8, 32  # 8 x 26 MB of parameters
LR, MOMENTUM, SEED = 0.01, 0.9, 3


def main():
    way, rank, meeting, cgroup = sys.argv[1:]
    if cgroup:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def build():
        return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    y = torch.randint(0, WIDTH, (BATCH,), generator=generator)
    losses = WAYS[way](torch, build, x, y, int(rank), meeting)
    print(json.dumps(losses))


def alone(torch, build, x, y, rank, meeting):
    """Plain PyTorch, with the first values that a model on the meta device gets from the seed."""
    from gradtide.parallel.split.meta import initial_tensors

    with torch.device("meta"):
        model = build()
    names = [name for name, _ in model.named_parameters()]
    values = dict(initial_tensors(model, SEED, names))
    model = model.to_empty(device="cpu")
    model.load_state_dict(values)
    return _plain(torch, model, x, y, lambda loss: loss.item())


def copies(torch, build, x, y, rank, meeting):
    import gradtide
    from gradtide.collective import Group
    from gradtide.sync import Job

    with Group.join(meeting, rank, 2, timeout_s=60) as group:
        torch.manual_seed(0)
        model = build()
        rule = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        wrapped = gradtide.DataParallel(model, rule, share_parameters=True, job=Job.of(group))
        losses = []
        for _ in range(2):
            half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
            loss = torch.nn.functional.cross_entropy(wrapped(x[half]), y[half])
            loss.backward()
            wrapped.step()
            losses.append(loss.item())
        return losses


def split(torch, build, x, y, rank, meeting):
    import gradtide
    from gradtide.collective import Group
    from gradtide.schedule.step.layout import Layout, Stage
    from gradtide.sync import Job

    with torch.device("meta"):
        model = build()
    names, half = tuple(str(number) for number in range(2 * LAYERS)), LAYERS
    layout = Layout(names, (Stage(0, half, (0,)), Stage(half, 2 * LAYERS, (1,))), 2)
    with Group.join(meeting, rank, 2, timeout_s=60) as group:
        made = gradtide.ModelParallel(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM),
            layout,
            seed=SEED,
            job=Job.of(group),
        )
        losses = [float(made.step(x, y, torch.nn.functional.cross_entropy)) for _ in range(2)]
        made.close()
        return losses


def _plain(torch, model, x, y, told):
    rule = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(told(loss))
    return losses


WAYS = {"alone": alone, "copies": copies, "split": split}

if __name__ == "__main__":
    main()
