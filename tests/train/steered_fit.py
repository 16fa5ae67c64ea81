"""What fit is to give alike on one device and one worker and on several of each, with every option; and a script.

steered_fit.py FOLDER DEVICES CASE...: trains the cases as one worker of a job; ADDRESS,... in place of DEVICES: over
servers, a store for each case; keep:STEP: with checkpoints, and worker 1 is killed in that step.
"""

import os
import signal
import sys
from functools import partial

import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.events import BatchDone

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(37, 5, generator=RANDOM, dtype=torch.float64)
LABELS = torch.randint(0, 3, (37,), generator=RANDOM)
VALUES = torch.randn(37, 3, generator=RANDOM, dtype=torch.float64)
WEIGHTS = torch.rand(37, generator=RANDOM, dtype=torch.float64)
HELD_OUT = slice(0, 13)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(5, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.cat([self.left(x["left"]).tanh(), self.right(x["more"][0]).tanh()], 1))


class Counted:
    """As torchmetrics' are: a state, and a figure that is no mean over samples."""

    def reset(self):
        self.seen = []

    def update(self, outputs, targets):
        self.seen.append((outputs.argmax(1) == targets) if targets.dim() == 1 else (outputs - targets).mean(1))

    def compute(self):
        seen = torch.cat(self.seen).double()
        return (seen * torch.arange(1, len(seen) + 1)).sum() / len(seen)  # the order counts


def right(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean()


def squared(outputs, targets):
    return (outputs - targets).pow(2).mean()


def spread(outputs, targets):
    return (outputs - targets).std()


def plain():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def normed():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def cosine(optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, 5)


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=40)


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def nested(targets):
    return {"left": X, "more": (X.flip(1),)}, targets


CLASSES = {"metrics": [right, Counted()]}
NUMBERS = {"loss": "mse", "metrics": {"squared": squared, "counted": Counted(), "spread": gradtide.OverAll(spread)}}
SHARED = {"batch_norm": "shared", "batch_size": 7}  # the last batch has two samples
CASES = {  # the model, the data, and what fit takes
    "schedule, clip, metrics": (plain, (X, LABELS), CLASSES | {"schedule": cosine, "clip_norm": 0.1}),
    "numpy, per step": (plain, (X.numpy(), VALUES.numpy()), NUMBERS | {"schedule": one_cycle, "schedule_per": "step"}),
    "nested, plateau": (TwoInputs, nested(LABELS), CLASSES | {"schedule": plateau, "lr": 0.5}),
    "sample weights": (plain, (X, LABELS, WEIGHTS), CLASSES | {"clip_norm": 0.5}),
    "weights of numbers": (plain, {"inputs": X, "targets": VALUES, "weights": WEIGHTS}, NUMBERS),
    "loader, accumulate": (
        plain,
        DataLoader(TensorDataset(X, VALUES), 8),
        NUMBERS | {"accumulate": 2, "clip_norm": 0.2, "schedule": cosine},
    ),
    "generator": (plain, lambda: ((X[i : i + 9], LABELS[i : i + 9]) for i in range(0, 36, 9)), CLASSES),
    "batch norm": (normed, (X, LABELS), CLASSES | SHARED | {"clip_norm": 1.0, "schedule": cosine}),
    "batch norm, numbers": (normed, (X, VALUES), NUMBERS | SHARED),
    "batch norm, accumulate": (normed, (X, LABELS), CLASSES | SHARED | {"batch_size": 12, "accumulate": 2}),
    "early stopping": (plain, (X, LABELS), CLASSES | {"lr": 2.0, "epochs": 9, "stop": 1}),
}


def held_out(data):
    """Of validation batches of one sample too, which leaves a worker without any."""
    if isinstance(data, DataLoader):
        return DataLoader(TensorDataset(*(part[HELD_OUT] for part in data.dataset.tensors)), 4)
    if callable(data):
        return [(X[HELD_OUT], LABELS[HELD_OUT]), (X[13:14], LABELS[13:14])]
    if isinstance(data, dict):
        return {name: part[HELD_OUT] for name, part in data.items()}
    return torch.utils._pytree.tree_map(lambda part: part[HELD_OUT], data)


def train(case, **options):
    make, data, own = CASES[case]
    settings = {"lr": 0.1, "epochs": 3, "batch_size": 9, "optimizer": partial(SGD, momentum=0.9), **own, **options}
    torch.manual_seed(1)
    net = make().double()
    patience, told = settings.pop("stop", 0), []
    watching = [gradtide.EarlyStopping(patience=patience)] if patience else []
    history = gradtide.fit(
        net, data, validation=held_out(data), callbacks=[*watching, told.append], progress=False, **settings
    )
    ends = [event.values for event in told if isinstance(event, gradtide.EpochEnd)]
    return {"state": net.state_dict(), "columns": history.columns(), "stopped": history.stopped, "told": ends}


def keep(case, folder, kill_at):
    """With checkpoints, going on with what is there; one worker dies in this step, if any."""

    def emit(event):
        if isinstance(event, BatchDone) and event.step == kill_at and gradtide.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return train(case, checkpoints=gradtide.Checkpoints(folder, every=4), resume=True, emit=emit)


def look(devices=1):
    """What evaluate and predict give, with batches that leave a worker or a device without a sample."""
    torch.manual_seed(1 + gradtide.rank())  # workers that would shuffle apart
    shuffled = DataLoader(TensorDataset(X, LABELS), 4, shuffle=True)
    torch.manual_seed(1)
    net = plain().double()
    seen = gradtide.evaluate(net, shuffled, devices=devices, metrics=[right])
    return {
        "figures": [seen.loss, seen.accuracy, seen.samples, seen.metrics["right"]],
        "outputs": gradtide.predict(net, X, devices=devices, batch_size=4),
        "bf16": roughly(devices),
        "alone": gradtide.evaluate(net, (X, LABELS), alone=True).loss,
        "mean": gradtide.mean_over_workers({"b": gradtide.rank(), "a": 1.0}, weight=1 + gradtide.rank()),
    }


def roughly(devices):
    """In bf16, with batch normalisation over all: parameters are float32 and alike on all workers."""
    torch.manual_seed(1)
    net = normed()
    options = {"batch_norm": "shared", "accumulate": 2, "clip_norm": 1.0, "metrics": [right], "precision": "bf16"}
    data = X.float(), LABELS
    history = gradtide.fit(net, data, validation=data, devices=devices, batch_size=12, lr=0.1, epochs=3, **options)
    return {"state": net.state_dict(), "loss": history.validation_loss, "right": history.metrics["right"]}


def main():
    folder, where, *cases = sys.argv[1:]
    if where.startswith("keep:"):
        found = {case: keep(case, f"{folder}/{case}", int(where[5:])) for case in cases}
    elif where.isdecimal():
        found = {case: train(case, devices=int(where)) for case in cases}
    else:
        stores = dict(zip(cases, where.split(","), strict=True))
        found = {case: train(case, sync=gradtide.Servers("bsp", address=stores[case])) for case in cases}
    torch.save(found, f"{folder}/found-{gradtide.rank()}.pt")
    if where.isdecimal():
        torch.save(look(int(where)), f"{folder}/looked-{gradtide.rank()}.pt")


if __name__ == "__main__":
    main()
