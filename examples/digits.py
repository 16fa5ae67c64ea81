"""A classifier of digits: a DataLoader that shuffles, in processes of its own; validation; the best model is kept.

    python examples/digits.py                             # one process
    gradtide run --workers 2 examples/digits.py           # two workers, each with half of every batch
    torchrun --nproc-per-node 2 examples/digits.py        # the same

Lines that end in "# gradtide" make the difference. Without them this is the program for one process, and with them two
workers end with the parameters that one process would have (`--exact` computes in float64, where one can see that).
"""

import argparse
import copy
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide  # gradtide
from gradtide.train.digits import load_digits  # the data, which one process needs too

IS_FIRST = os.environ.get("RANK", "0") == "0"  # gradtide run and torchrun number their processes; one prints and saves


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


def evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """The loss, and how often it is right."""
    images, labels = data
    model.eval()
    with torch.no_grad():
        outputs = model(images)
    model.train()
    right = (outputs.argmax(1) == labels).double().mean()
    return functional.cross_entropy(outputs, labels).item(), right.item()


def main() -> nn.Module:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--exact", action="store_true", help="compute in float64")
    options.add_argument("--best", type=Path, help="where to save the best model")
    chosen = options.parse_args()
    if chosen.exact:
        torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    (images, labels), (test_images, test_labels) = load_digits()
    images, test_images = (x.to(torch.get_default_dtype()) for x in (images, test_images))
    validation, test = (images[1200:], labels[1200:]), (test_images, test_labels)
    loader = DataLoader(
        TensorDataset(images[:1200], labels[:1200]), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True
    )
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    model = gradtide.DataParallel(model, optimizer)  # gradtide
    # The batch of all workers together is 64. They agree on the order of samples: no sampler, no set_epoch, no seed.
    loader = gradtide.shard(loader)  # gradtide

    best, lowest = model.state_dict(), float("inf")
    for epoch in range(chosen.epochs):
        for x, y in loader:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        # Every worker validates on everything, so all of them see the same numbers and take the same decisions.
        loss, right = evaluate(model, validation)
        scheduler.step(loss)
        if loss < lowest:
            best, lowest = copy.deepcopy(model.state_dict()), loss  # the plain model's names: no "module."
            if IS_FIRST and chosen.best is not None:
                torch.save(best, chosen.best)
        if IS_FIRST:
            print(
                f"epoch {epoch + 1}: validation loss {loss:.4f}, {right:.3f} right, rate {scheduler.get_last_lr()[0]:g}"
            )

    final = network()  # a plain model again, for whatever comes after training
    final.load_state_dict(best)
    if IS_FIRST:
        print(f"test: {evaluate(final, test)[1]:.3f} right")
    return nn.ModuleList([model, final])


if __name__ == "__main__":
    main()
