"""Datasets of others, as they are: in an epoch each sample is given once, to one of the workers."""

from collections import Counter

import pytest
import torch
from read_parts import give
from torch.utils.data import DataLoader, Subset

COUNT = 30


def huggingface(transform=None):
    datasets = pytest.importorskip("datasets")
    columns = {
        "x": list(range(COUNT)),
        "word": [f"word {n}" for n in range(COUNT)],
        "row": [[n, -n] for n in range(COUNT)],
    }
    made = datasets.Dataset.from_dict(columns)
    return made.with_format("torch") if transform is None else made.with_transform(transform)


def torchvision():
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # built for another torch, it says that an operator does not exist
        pytest.skip(f"torchvision can't be imported: {error}")
    return torchvision.datasets.FakeData(COUNT, (1, 4, 4), transform=torchvision.transforms.PILToTensor())


def name(batch):
    """Something of each sample that no other has."""
    if isinstance(batch, dict):
        assert [f"word {n}" for n in batch["x"].tolist()] == list(batch["word"])
        return batch["x"].tolist()
    return [bytes(image.flatten().tolist()) for image in batch[0]]


def names(found):
    return Counter(one for given, *_ in found for part, share in given if share.samples for one in name(part))


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("make", [huggingface, torchvision])
def test_two_workers_see_each_sample_once_in_an_epoch_and_read_no_other(make, processes):
    data = make()
    wanted = Counter(one for batch in DataLoader(data, 7) for one in name(batch))
    assert len(wanted) == COUNT
    context = {"multiprocessing_context": "fork"} if processes else {}
    loader = DataLoader(Subset(data, range(COUNT)), 7, shuffle=True, num_workers=processes, **context)
    found = [give(loader, rank, 2, epochs=1) for rank in range(2)]
    assert names(found) == wanted
    whole = [give(loader, rank, 2, read="whole", epochs=1) for rank in range(2)]
    assert [name(part) for part, _ in found[1][0]] == [name(part) for part, _ in whole[1][0]]
    assert "whole batches" not in found[0][2]


@pytest.mark.parametrize("make", [huggingface, torchvision])
def test_after_a_death_the_one_who_is_left_gets_the_rest(make):
    found = [give(DataLoader(make(), 7, shuffle=True), rank, 2, loss_at=3, epochs=1)[0] for rank in range(2)]
    left = found[0][:2] + found[0][3:]  # the third batch comes again, for one
    seen = names([(left,), (found[1][:2],)])
    assert set(seen.values()) == {1}
    assert len(seen) == COUNT


def test_a_function_that_makes_something_of_a_list_of_samples_is_given_the_whole_list():
    def center(batch):
        mean = torch.tensor(batch["x"]).double().mean()
        return {"x": [torch.tensor(n).double() - mean for n in batch["x"]], "word": batch["word"]}

    loader = DataLoader(huggingface(center), 6)
    given, _, reading = give(loader, 1, 2, epochs=1)
    assert [part["x"].tolist() for part, _ in given] == [[0.5, 1.5, 2.5]] * 5
    assert reading.startswith("every worker reads whole batches: Dataset makes lists of samples at once; read='part'")
