"""What shares memory with parameters follows when these are shared between workers, and edits of them are followed."""

from functools import cache

import aliased_programs
import pytest
import torch
import training

from gradtide.sync.shared import storages
from gradtide.sync.trained import find_trained

alone = cache(aliased_programs.alone)
WAYS = {"auto": {}, "shared": {"share_parameters": True}}
SIZES = [("auto", 3)]
SIZES += [pytest.param(way, size, marks=pytest.mark.slow) for way, size in (("auto", 2), ("shared", 2), ("shared", 3))]
named = [program.__name__ for program in aliased_programs.SHARED]


def check(found, program):
    wanted = alone(program)
    for of_worker in found:
        assert not isinstance(of_worker, str), of_worker
        for a, b in zip(of_worker[0], wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10), f"off by {(a - b).abs().max()}"


@pytest.mark.parametrize(("way", "size"), SIZES)
@pytest.mark.parametrize("program", named)
def test_aliases_follow_and_sharing_stays_on(workers, program, way, size):
    found = workers.run(aliased_programs.run, size, training.new_name(), program, dict(WAYS[way]))
    check(found, program)
    for _, said, _ in found:
        assert "parameters are shared:" in said


@pytest.mark.parametrize("program", aliased_programs.NOT_SHARED)
def test_memory_that_is_used_twice_is_not_shared_and_says_so(workers, program):
    name, why = program.__name__, aliased_programs.NOT_SHARED[program]
    found = workers.run(aliased_programs.run, 2, training.new_name(), name, {})
    check(found, name)
    for _, said, _ in found:
        assert why in said
    for refused in workers.run(aliased_programs.run, 2, training.new_name(), name, dict(WAYS["shared"])):
        assert "parameters can't be shared" in refused
        assert why in refused


@pytest.mark.parametrize(("way", "size"), SIZES)
@pytest.mark.parametrize("program", aliased_programs.EDITS)
def test_edits_end_sharing_once_and_are_followed(workers, program, way, size):
    found = workers.run(aliased_programs.run, size, training.new_name(), program, dict(WAYS[way]))
    check(found[:1] if program == "norms are logged by one" else found, program)
    for rank, (_, said, warned) in enumerate(found):
        if program == "after the last step":
            assert "parameters are shared:" in said
            continue
        assert len(warned) == (rank == 0), warned  # one says it for all
        assert all(text.split("since ")[1].split(";")[0] in said for text in warned)


def test_nothing_is_shared_where_pytorch_cannot_move_a_storage(monkeypatch):
    model = torch.nn.Linear(3, 2)
    trained = find_trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not storages.why_not_moved(trained)
    monkeypatch.setattr(storages, "_swap", None)
    assert "this version of PyTorch can't put other memory under a tensor" in storages.why_not_moved(trained)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", ["one_edits_alone", *aliased_programs.AT_LAST_ALONE])
def test_an_edit_of_one_worker_alone_is_found_out_by_all(workers, program, way):
    for found in workers.run(aliased_programs.run, 2, training.new_name(), program, dict(WAYS[way])):
        assert "is no longer the same on all workers" in found


def test_a_gradient_that_is_kept_beyond_a_shared_step_says_that_it_is_a_part(workers):
    for found in workers.run(aliased_programs.run, 2, training.new_name(), "keeps_a_gradient", {}):
        assert "kept from an earlier step is this worker's part alone" in found


@pytest.mark.parametrize("way", WAYS)
def test_numpy_arrays_outlive_the_memory_that_they_show(workers, way):
    for tensors, (count, ended), _ in workers.run(
        aliased_programs.run, 2, training.new_name(), "numpy_outlives", dict(WAYS[way])
    ):
        assert all(torch.isfinite(t).all() for t in tensors)
        assert len(tensors) == 2 * count
        for array, value in zip(tensors[:count], ended, strict=True):
            assert torch.equal(array, value)  # the memory that they began in is theirs again
