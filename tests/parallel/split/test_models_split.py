"""AlexNet and the transformer that gradtide brings along."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gradtide.errors import ConfigError
from gradtide.parallel.split.layers.response_norm import GroupedResponseNorm
from gradtide.train.models import MODELS, alexnet, build_model, transformer


def test_alexnet_is_the_one_of_2012():
    with torch.device("meta"):
        model = alexnet()
        outputs = model(torch.empty(2, 3, 227, 227))
    assert sum(parameter.numel() for parameter in model.parameters()) == 60_965_224
    assert outputs.shape == (2, 1000)
    assert [model.get_submodule(f"conv{n}").groups for n in range(1, 6)] == [1, 2, 1, 2, 2]


def test_alexnet_is_narrower_for_fewer_classes_and_smaller_images_when_asked():
    model = alexnet(width=1 / 8, classes=10, size=67)
    assert model(torch.rand(3, 3, 67, 67)).shape == (3, 10)
    assert (model.conv1.out_channels, model.fc6.in_features, model.fc7.in_features) == (12, 32, 512)
    for options in ({"size": 66}, {"width": 1e-4}, {"lrn": "both"}):
        with pytest.raises(ConfigError):
            alexnet(**options)


def test_response_norm_within_groups_is_torchs_on_each_of_them():
    inputs = torch.rand(3, 12, 4, 4, dtype=torch.float64)
    norm = GroupedResponseNorm(5, alpha=5e-4, k=2.0, groups=2)
    expected = torch.cat([functional.local_response_norm(half, 5, 5e-4, 0.75, 2.0) for half in inputs.chunk(2, 1)], 1)
    assert torch.equal(norm(inputs), expected)
    assert not torch.equal(norm(inputs), nn.LocalResponseNorm(5, 5e-4, 0.75, 2.0)(inputs))
    assert norm(inputs[:0]).shape == (0, 12, 4, 4)
    with pytest.raises(ConfigError, match="5 channels"):
        norm(inputs[:, :5])


def test_both_alexnets_of_the_command_line_take_what_its_data_is():
    assert build_model("alexnet-small", seed=1)(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    with torch.device("meta"):
        assert MODELS["alexnet"]()(torch.empty(2, 1, 28, 28)).shape == (2, 10)


def test_the_transformer_sees_what_came_before_and_nothing_after():
    torch.manual_seed(0)
    model = transformer().eval()
    tokens = torch.randint(0, 96, (2, 12))
    other = tokens.clone()
    other[:, 8:] = (other[:, 8:] + 1) % 96
    one, two = model(tokens), model(other)
    assert one.shape == (2, 96, 12)
    assert torch.allclose(one[..., :8], two[..., :8], atol=1e-6)
    assert not torch.allclose(one[..., 8:], two[..., 8:], atol=1e-3)
    assert model.head.weight is model.token.weight
    with pytest.raises(ConfigError, match="heads"):
        transformer(width=30)


def test_the_transformer_learns():
    torch.manual_seed(0)
    model = transformer(vocabulary=16, length=8, width=32)
    tokens = torch.arange(64).reshape(8, 8) % 16
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = functional.cross_entropy(model(tokens), (tokens + 1) % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
