"""A mean teacher: a frozen copy that follows the model as an exponential average, and that it learns to agree with.

    python examples/mean_teacher.py                             # one process
    gradtide run --workers 2 examples/mean_teacher.py           # two workers, each with half of every batch
    torchrun --nproc-per-node 2 examples/mean_teacher.py        # the same

Lines that end in "# gradtide" make the difference. Without them this is the program for one process, and with them two
workers end with the parameters that one process would have (`--exact` computes in float64, where one can see that).
"""

import argparse
import copy
import os

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import gradtide  # gradtide
from gradtide.train.digits import load_digits  # the data, which one process needs too

DECAY, AGREEMENT, NOISE = 0.95, 2.0, 0.2
IS_FIRST = os.environ.get("RANK", "0") == "0"  # gradtide run and torchrun number their processes; one of them prints


class TwoViews(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Each image twice, with other noise each time.

    Every worker makes the whole batch and keeps its part. With the same seed everywhere, as here, the noise too is what
    one process would have drawn; workers with seeds of their own would still agree on the order of the samples.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        image = self._images[index]
        noisy = [image + NOISE * torch.randn_like(image) for _ in range(2)]
        return noisy[0], noisy[1], self._labels[index]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def main() -> nn.Module:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--exact", action="store_true", help="compute in float64")
    chosen = options.parse_args()
    if chosen.exact:
        torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    (images, labels), (test_images, test_labels) = load_digits()
    images, test_images = (functional.avg_pool2d(x.to(torch.get_default_dtype()), 2) for x in (images, test_images))
    loader = DataLoader(TwoViews(images[:500], labels[:500]), batch_size=50, shuffle=True)

    student = nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)

    student = gradtide.DataParallel(student, optimizer)  # gradtide
    loader = gradtide.shard(loader)  # gradtide

    # A copy of a wrapped model is a plain model. It is made here, after wrapping, because that is when all workers have
    # worker 0's parameters; made before, it would need the same seed everywhere.
    teacher = copy.deepcopy(student).requires_grad_(False)
    for epoch in range(chosen.epochs):
        for one, other, wanted in loader:
            outputs = student(one)
            agreement = functional.mse_loss(outputs.softmax(1), teacher(other).softmax(1))
            loss = functional.cross_entropy(outputs, wanted) + AGREEMENT * agreement
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            # The student's parameters are only read, so this is the same on every worker and on every way.
            with torch.no_grad():
                for mean, parameter in zip(teacher.parameters(), student.parameters(), strict=True):
                    mean.lerp_(parameter, 1 - DECAY)
        if IS_FIRST:
            found = [accuracy(model, test_images, test_labels) for model in (student, teacher)]
            print(f"epoch {epoch + 1}: the student is right in {found[0]:.3f}, the teacher in {found[1]:.3f}")
    return nn.ModuleList([student, teacher])


if __name__ == "__main__":
    main()
