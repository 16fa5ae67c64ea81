"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 grey 28x28 pictures of clothes in ten classes."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from gradtide.environment import Environment
from gradtide.errors import DataError
from gradtide.train.datasets.idx import read_idx

__all__ = ["fashion_mnist_folder", "load_fashion_mnist"]

# File -> the shape it must hold and the MD5 that the data set's own page gives for it.
FILES: dict[str, tuple[tuple[int, ...], str]] = {
    "train-images-idx3-ubyte.gz": ((60000, 28, 28), "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte.gz": ((60000,), "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte.gz": ((10000, 28, 28), "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte.gz": ((10000,), "bb300cfdad3c16e7a12a480ee83cd310"),
}
OFFICIAL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
DOWNLOAD_S = 30.0


def load_fashion_mnist(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((train images, labels), (test images, labels)); images are (n, 1, 28, 28) in [0, 1]."""
    train_x, train_y, test_x, test_y = (read_idx(_find(folder, name), shape) for name, (shape, _) in FILES.items())
    for name, labels in (("train-labels-idx1-ubyte", train_y), ("t10k-labels-idx1-ubyte", test_y)):
        if int(labels.max()) > 9:
            raise DataError(
                f"{_find(folder, name + '.gz')} holds a label {int(labels.max())}, expected 0 to 9; fetch it again"
            )
    return ((train_x.unsqueeze(1).float() / 255, train_y.long()), (test_x.unsqueeze(1).float() / 255, test_y.long()))


def fashion_mnist_folder(
    asked_for: Path | None, environment: Environment, searched: Sequence[Path] = (DEBIAN,)
) -> Path:
    """Where the four files are: the folder asked for, the cache, or Debian's; else downloads them to the cache."""
    if asked_for is not None:
        for name in FILES:
            _find(asked_for, name)
        return asked_for
    cache = environment.cache_dir / "fashion-mnist"
    for folder in (cache, *searched):
        if all((folder / name).exists() for name in FILES):
            return folder
    for name in FILES:
        if not (cache / name).exists():
            _download(name, cache)
    return cache


def _find(folder: Path, name: str) -> Path:
    """The file as it is distributed, or unpacked."""
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.exists():
            return path
    raise DataError(f"{folder / name} is missing; --data-dir needs the four Fashion-MNIST files {', '.join(FILES)}")


def _download(name: str, cache: Path) -> None:
    """Fetches one file, checks it, and only then gives it its name."""
    try:
        with urllib.request.urlopen(OFFICIAL + name, timeout=DOWNLOAD_S) as response:
            content = response.read()
    except (OSError, urllib.error.URLError) as error:
        raise DataError(
            f"Fashion-MNIST is not on this machine and {OFFICIAL + name} can't be fetched ({error}); "
            "put its four files in a folder and pass --data-dir, or install Debian's package dataset-fashion-mnist"
        ) from error
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != FILES[name][1]:
        raise DataError(f"{OFFICIAL + name} gave a file with MD5 {found}, expected {FILES[name][1]}; try again later")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f"{name}.{os.getpid()}.part"
        partial.write_bytes(content)
        partial.replace(cache / name)
    except OSError as error:
        raise DataError(f"{cache} can't be written ({error}); set GRADTIDE_CACHE to a folder that can") from error
