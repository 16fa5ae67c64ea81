"""The embedded data: scikit-learn's 1,797 real handwritten digits, scaled from 8x8 to 28x28. Needs no network."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradtide.extras import require

__all__ = ["load_digits"]

TRAIN_SAMPLES = 1437  # four fifths


def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((train images, labels), (test images, labels)); images are (n, 1, 28, 28) in [0, 1], in one fixed order."""
    pixels, targets = _read()
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(targets).long()
    # The file is sorted by writer: shuffle, so that train and test hold the same people.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:TRAIN_SAMPLES], order[TRAIN_SAMPLES:]
    return (images[train], labels[train]), (images[test], labels[test])


def _read() -> tuple[np.ndarray, np.ndarray]:
    """(n, 64) grey values from 0 to 16, and the digits. Importing scikit-learn takes 1.2 s, reading its file 0.05 s."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.exists():
            with gzip.open(path) as file:
                table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
            return table[:, :-1], table[:, -1]
    require("digits", "the digits data set")
    from sklearn import datasets  # a scikit-learn that keeps the file elsewhere

    bunch = datasets.load_digits()
    return bunch.data, bunch.target
