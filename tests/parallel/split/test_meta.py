"""First values of a model on the meta device: the same whoever makes them, in whatever order."""

import pytest
import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.meta import initial_tensors, materialise
from gradtide.train.models import alexnet, transformer


def on_meta(build):
    with torch.device("meta"):
        return build()


def test_a_module_alone_gets_the_values_that_it_gets_within_the_whole_model():
    whole = materialise(on_meta(transformer), "", seed=7)
    block = materialise(on_meta(transformer).blocks[1], "blocks.1", seed=7)
    for name, tensor in block.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[f"blocks.1.{name}"])
    assert whole.head.weight is whole.token.weight
    assert not torch.equal(whole.blocks[0].up.weight, whole.blocks[1].up.weight)
    assert whole.token.weight.std().item() == pytest.approx(1.0, rel=0.05)  # the embedding's, not the head's
    other = materialise(on_meta(transformer), "", seed=8)
    assert not torch.equal(other.token.weight, whole.token.weight)
    assert whole(torch.zeros(2, 5, dtype=torch.int64)).isfinite().all()


def test_tensors_come_one_module_at_a_time_and_only_those_asked_for():
    def build():
        return alexnet(width=1 / 8, size=67)

    whole = materialise(on_meta(build), "", seed=1)
    every = dict(initial_tensors(on_meta(build), seed=1))
    assert every.keys() == whole.state_dict().keys()
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in every.items())
    assert [name for name, _ in initial_tensors(on_meta(build), 1, {"fc7.bias"})] == ["fc7.bias"]
    names = [name for name, _ in initial_tensors(on_meta(transformer), 1)]
    assert "token.weight" in names
    assert "head.weight" not in names


def test_buffers_frozen_parameters_and_the_random_numbers_of_others_are_as_they_should_be():
    random = torch.get_rng_state()
    model = materialise(on_meta(lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.BatchNorm1d(3))), "", 1)
    assert torch.equal(model[1].running_var, torch.ones(3))
    assert model[1].num_batches_tracked == 0
    assert not model[0].weight.requires_grad
    assert model[1].weight.requires_grad
    assert torch.equal(torch.get_rng_state(), random)


def test_modules_that_do_not_say_their_first_values_are_refused_by_name():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    class Half(Scale):
        def reset_parameters(self):
            nn.init.ones_(self.scale)

    with pytest.raises(ConfigError, match=r"^1 \(Scale\) has parameters or buffers but no reset_parameters"):
        materialise(on_meta(lambda: nn.Sequential(nn.Linear(3, 3), Scale())), "", 1)
    with pytest.raises(ConfigError, match=r"^part\.0 \(Half\): its reset_parameters\(\) leaves shift without values"):
        materialise(on_meta(lambda: nn.Sequential(Half())), "part", 1)
