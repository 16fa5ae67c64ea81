"""A loop of one's own, complete: validation, a schedule, clipping, the best model, resume, and one worker that prints.

python examples/own_loop.py                        # one process
gradtide run --workers 2 examples/own_loop.py      # two workers; torchrun --nproc-per-node 2 does the same
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.train.digits import load_digits


def make_data(batch_size):
    (images, labels), (held_out, held_labels) = load_digits()
    shuffled = DataLoader(TensorDataset(images, labels), batch_size, shuffle=True)
    return shuffled, DataLoader(TensorDataset(held_out, held_labels), 256)


def validate(model, loader):
    """The mean loss and the share of right answers over all workers: each computes its part of every batch."""
    model.eval()
    loss, right, samples = 0.0, 0.0, 0
    with torch.no_grad():
        for images, labels in gradtide.shard(loader):
            outputs = model(images)
            loss += functional.cross_entropy(outputs, labels, reduction="sum").item()
            right += (outputs.argmax(1) == labels).sum().item()
            samples += len(labels)
    model.train()
    return gradtide.mean_over_workers({"loss": loss / samples, "accuracy": right / samples}, weight=samples)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/own-loop"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    training, validation = make_data(batch_size=64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    checkpoint, begin, best = arguments.folder / "last.pt", 1, float("inf")
    if checkpoint.exists():  # every worker reads it, before the model is wrapped
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        begin, best = saved["epoch"] + 1, saved["best"]
    model = gradtide.DataParallel(net, optimizer)

    for epoch in range(begin, arguments.epochs + 1):
        for images, labels in gradtide.shard(training):
            functional.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the gradient of all workers
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        seen = validate(model, validation)  # all workers take part
        is_best, best = seen["loss"] < best, min(best, seen["loss"])
        if gradtide.is_main():  # one worker prints and writes
            print(f"epoch {epoch}: loss {seen['loss']:.4f}, accuracy {seen['accuracy']:.4f}", flush=True)
            arguments.folder.mkdir(parents=True, exist_ok=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            torch.save(state | {"epoch": epoch, "best": best}, checkpoint)
            if is_best:
                torch.save(net.state_dict(), arguments.folder / "best.pt")
    if gradtide.is_main():
        print(f"trained on {gradtide.workers()} workers; best validation loss {best:.4f}", flush=True)
    model.close()


if __name__ == "__main__":
    main()
