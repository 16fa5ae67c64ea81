import gzip
import struct

import numpy as np
import pytest
import torch
from sklearn import datasets

from gradtide.environment import Environment
from gradtide.errors import DataError
from gradtide.train.datasets import fashion_mnist
from gradtide.train.datasets.fashion_mnist import DEBIAN, FILES, fashion_mnist_folder, load_fashion_mnist
from gradtide.train.datasets.idx import read_idx
from gradtide.train.digits import load_digits
from gradtide.train.models import build_model


def test_the_digits_are_scikit_learns_scaled_up_and_split_without_overlap():
    (x, y), (test_x, test_y) = load_digits()
    assert x.shape == (1437, 1, 28, 28)
    assert test_x.shape == (360, 1, 28, 28)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    original = datasets.load_digits()
    assert torch.bincount(torch.cat([y, test_y])).tolist() == np.bincount(original.target).tolist()
    means = torch.cat([x, test_x]).mean((1, 2, 3)).sort().values
    # Bilinear scaling from 8 to 28 keeps the mean of an image only roughly: the borders count more.
    expected = torch.from_numpy(original.images).float().div(16).mean((1, 2)).sort().values
    assert (means - expected).abs().max() < 0.03


def test_the_models_are_those_of_the_textbook():
    x = torch.zeros(2, 1, 28, 28)
    for name, parameters in (("lenet", 20 * 10 + 50 * 501 + 801 * 128 + 129 * 10), ("mlp", 785 * 4096 + 4097 * 4106)):
        model = build_model(name, 0)
        assert model(x).shape == (2, 10)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert torch.equal(next(model.parameters()), next(build_model(name, 0).parameters()))


def idx(shape, values=None):
    body = np.zeros(shape, np.uint8) if values is None else np.asarray(values, np.uint8)
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body.tobytes()


def test_an_idx_file_is_read_packed_or_not(tmp_path):
    values = np.arange(6).reshape(2, 3)
    (tmp_path / "a").write_bytes(idx((2, 3), values))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx((2, 3), values)))
    for name in ("a", "a.gz"):
        assert read_idx(tmp_path / name, (2, 3)).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"rubbish!", "not an IDX file of bytes: it starts with 72 75 62 62"),
        (idx((2, 3))[:-1], "truncated or too long: 17 bytes, expected 18"),
        (idx((2, 3)) + b"x", "truncated or too long"),
        (idx((2, 3))[:7], "says it holds nothing"),
        (idx((3, 2)), r"says it holds \(3, 2\), expected \(2, 3\)"),
        (idx((6,)), "holds 1 dimensions, expected 2"),
        (b"\0\0\x0d\2" + idx((2, 3))[4:], "not an IDX file of bytes"),
    ],
)
def test_a_corrupt_or_mislabelled_idx_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "file-idx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, (2, 3))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [gzip.compress(idx((2, 3)))[:-9], b"not gzip", gzip.compress(b"x")[:12] + b"\xff" * 20]
)
def test_a_broken_gzip_is_refused_by_name(tmp_path, content):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"file.gz .*(fetch it again|IDX)"):
        read_idx(path, (2, 3))


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx((2, 3)) + bytes(50_000_000)))
    with pytest.raises(DataError, match="19 bytes, expected 18"):
        read_idx(path, (2, 3))


def write_set(folder, label=9):
    folder.mkdir(parents=True)
    for name, (shape, _) in FILES.items():
        content = idx(shape, np.full(shape, label if len(shape) == 1 else 128))
        (folder / name).write_bytes(gzip.compress(content, 1))


def test_fashion_mnist_is_taken_from_the_folder_then_the_cache_then_debian(tmp_path):
    own, debian, environment = tmp_path / "own", tmp_path / "debian", Environment(cache_dir=tmp_path / "cache")
    write_set(debian)
    assert fashion_mnist_folder(None, environment, [debian]) == debian
    write_set(environment.cache_dir / "fashion-mnist")
    assert fashion_mnist_folder(None, environment, [debian]) == environment.cache_dir / "fashion-mnist"
    write_set(own, label=10)
    assert fashion_mnist_folder(own, environment, [debian]) == own
    (x, y), (test_x, _) = load_fashion_mnist(debian)
    assert (x.shape, test_x.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert (float(x[0, 0, 0, 0]), int(y[5])) == (pytest.approx(128 / 255), 9)
    with pytest.raises(DataError, match="holds a label 10, expected 0 to 9"):
        load_fashion_mnist(own)
    (own / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is missing; --data-dir needs the four"):
        fashion_mnist_folder(own, environment)


def test_a_download_is_checked_before_it_gets_its_name(tmp_path, monkeypatch):
    served = tmp_path / "served"
    write_set(served)
    monkeypatch.setattr(fashion_mnist, "OFFICIAL", served.as_uri() + "/")
    environment = Environment(cache_dir=tmp_path / "cache")
    with pytest.raises(DataError, match=r"MD5 \w{32}, expected 8d4fb7e6"):
        fashion_mnist_folder(None, environment, [])
    assert not list(tmp_path.glob("cache/**/*.gz*"))
    monkeypatch.setattr(fashion_mnist, "OFFICIAL", (tmp_path / "nowhere").as_uri() + "/")
    with pytest.raises(DataError, match=r"can't be fetched .* pass --data-dir"):
        fashion_mnist_folder(None, environment, [])


@pytest.mark.skipif(not DEBIAN.exists(), reason="needs Fashion-MNIST: apt-get install dataset-fashion-mnist")
def test_the_original_is_read_and_has_ten_equal_classes(tmp_path):
    (_, y), (_, test_y) = load_fashion_mnist(fashion_mnist_folder(None, Environment(cache_dir=tmp_path)))
    assert torch.bincount(y).tolist() == [6000] * 10
    assert torch.bincount(test_y).tolist() == [1000] * 10
