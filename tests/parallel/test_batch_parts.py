"""What shard does to batches that are more than a pair of tensors."""

import dataclasses
from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import gradtide
from gradtide.errors import ConfigError
from gradtide.parallel.batch_parts import digest
from gradtide.sync import Job

SAMPLES = 5
X = torch.arange(10.0).reshape(SAMPLES, 2)
Y = np.arange(SAMPLES)
WORDS = ["a", "b", "c", "d", "e"]
Pair = namedtuple("Pair", "left right")


class Encoding(UserDict):  # as tokenizers give them
    pass


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any


class Graph:
    pass


CUT = {
    "strings": ((X, WORDS), lambda part: (part[0], part[1])),
    "a dict": ({"x": X, "words": WORDS, "mask": None}, lambda part: (part["x"], part["words"])),
    "an ordered dict": (OrderedDict(x=X, words=WORDS), lambda part: (part["x"], part["words"])),
    "nested": ([X, {"deep": (WORDS, X)}], lambda part: (part[1]["deep"][1], part[1]["deep"][0])),
    "a list of tensors": ([X, X, WORDS], lambda part: (part[1], part[2])),
    "a namedtuple": (Pair(X, tuple(WORDS)), lambda part: (part.left, list(part.right))),
    "a dataclass": (Sample(X, WORDS), lambda part: (part.image, part.label)),
    "an encoding": (Encoding(x=X, words=WORDS), lambda part: (part["x"], part["words"])),
    "a deque": (deque([X, WORDS]), lambda part: (part[0], part[1])),
    "arrays": ({"x": X.numpy(), "words": WORDS}, lambda part: (torch.from_numpy(part["x"]), part["words"])),
}


def parts(batch: Any, workers: int, **options: Any) -> list[Any]:
    jobs = [Job(rank, workers) for rank in range(workers)]
    return [next(iter(gradtide.shard([batch], job=job, **options))) for job in jobs]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", CUT)
def test_what_belongs_to_a_sample_is_cut_with_it_and_containers_are_entered(name: str, workers: int) -> None:
    batch, look = CUT[name]
    found = parts(batch, workers)
    assert all(type(part) is type(batch) for part in found)
    assert torch.equal(torch.cat([look(part)[0] for part in found]), X)
    assert [word for part in found for word in look(part)[1]] == WORDS
    assert all(len(look(part)[0]) == len(look(part)[1]) for part in found)
    assert torch.equal(look(batch)[0], X)  # the batch itself is as it was


def test_a_worker_without_a_sample_gets_one_that_counts_nothing() -> None:
    job = Job(0, 2)
    given = iter(gradtide.shard([{"x": X[:1], "words": ["a"], "more": [X[:1]]}], job=job))
    part = next(given)
    assert part["words"] == ["a"]
    assert len(part["x"]) == len(part["more"][0]) == 1
    assert job.share is not None
    assert (job.share.samples, job.share.of) == (0, 1)


REFUSED = {
    "an int": ((X, 3), "'1' is a single int"),
    "a string": ({"x": X, "split": "train"}, "'split' is a single str"),
    "a number without dimensions": ((X, torch.tensor(0.5)), "'1' is a tensor without dimensions"),
    "an array without dimensions": ((X, np.array(0.5)), "'1' is an array without dimensions"),
    "a tensor of another length": ({"x": X, "e": {"w": X[:3]}}, "5 in 'x', 3 in 'e.w'.*whole=\\['e.w'\\]"),
    "too few strings": ({"x": X, "words": WORDS[:4]}, "5 in 'x', 4 in 'words'"),
    "an empty list": ((X, []), "'1' is an empty list"),
    "no sample": ((X[:0],), "'0' is a tensor without a sample"),
    "a sparse tensor": ((X, X.to_sparse()), "'1' is a sparse tensor"),
    "a packed sequence": ((pack_sequence([X[0], X[1]]), X), "'0' is a PackedSequence"),
    "a class of one's own": ({"x": X, "graph": Graph()}, "'graph' is of class Graph"),
    "nothing": ({"x": None}, "has no samples"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_its_path(name: str) -> None:
    batch, line = REFUSED[name]
    with pytest.raises(ConfigError, match=line) as refused:
        parts(batch, 2)
    assert "\n" not in str(refused.value)


def test_what_is_named_is_everybodys() -> None:
    weights = torch.ones(SAMPLES)
    batch = {"x": X, "class_weights": weights, "extra": {"rate": 0.5, "w": X[:3]}, "graph": Graph()}
    for part in parts(batch, 2, whole=["class_weights", "extra.rate", "extra.w", "graph"]):
        assert part["class_weights"] is weights
        assert part["extra"]["rate"] == 0.5
        assert part["extra"]["w"] is batch["extra"]["w"]  # type: ignore[index]
        assert len(part["x"]) in (2, 3)
    assert parts((X, weights), 2, whole=["1"])[0][1] is weights
    assert parts({"x": X, "extra": {"a": 1}}, 2, whole=["extra"])[0]["extra"] == {"a": 1}


def test_a_name_that_the_batch_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="names 'class_weight', but this batch has 'x', 'class_weights'"):
        parts({"x": X, "class_weights": torch.ones(SAMPLES)}, 2, whole=["class_weight"])
    with pytest.raises(ConfigError, match=r"say whole=\['x'\]"):
        gradtide.shard([X], whole="x", job=Job())


def test_a_digest_knows_numbers_words_shapes_and_places() -> None:
    batch = {"x": X, "words": WORDS, "y": Y}
    same = {"x": X.clone(), "words": list(WORDS), "y": Y.copy()}
    assert digest(batch) == digest(same)
    others = [
        {**batch, "x": X + 1},
        {**batch, "x": X.reshape(10)},
        {**batch, "x": X.double()},
        {**batch, "words": WORDS[::-1]},
        {**batch, "y": Y + 1},
        {"z": X, "words": WORDS, "y": Y},
    ]
    assert len({digest(batch), *map(digest, others)}) == 7
