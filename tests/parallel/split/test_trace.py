"""A model made into a chain: the same bits, in training the same gradients, and refused by name where not."""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from gradtide.errors import ConfigError, DataError
from gradtide.parallel.split.chain_values import input_values, output_of, run_units
from gradtide.parallel.split.trace import keep_whole, trace
from gradtide.parallel.split.units import Chain
from gradtide.train.models import alexnet, lenet, transformer


def names(chain: Chain) -> list[str]:
    return [unit.name for unit in chain.units]


def kinds(chain: Chain) -> list[str]:
    return [type(unit.module).__name__ for unit in chain.units]


def same_in_training(chain: Chain, model: nn.Module, inputs) -> None:
    """Outputs and gradients of the chain, each unit an autograd of its own, are those of the model, to the bit."""
    model.train()
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    torch.manual_seed(1)
    expected = model(*args)
    expected.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for unit in chain.units:
        unit.module.train()
    torch.manual_seed(1)
    found = output_of(chain, run_units(chain, input_values(chain, model, inputs)))
    found.square().sum().backward()
    assert torch.equal(found, expected)
    assert gradients.keys() == {name for name, p in model.named_parameters() if p.grad is not None}
    assert all(torch.equal(gradients[name], p.grad) for name, p in model.named_parameters() if name in gradients)


class Forward(nn.Module):
    """A model whose forward is given."""

    def __init__(self, forward, **parts):
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self._forward(self, *inputs)


# --- the three ways ---


def test_the_layers_of_sequentials_within_each_other_are_the_units():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True)), nn.Linear(8, 2))
    chain = trace(model, torch.rand(5, 4))
    assert (chain.how, names(chain)) == ("Sequential", ["0.0", "0.1", "1"])
    assert chain.units[2].parameters == {"weight": "1.weight", "bias": "1.bias"}
    assert chain.units[2].module is model[1]
    assert model[0][1].inplace
    assert not chain.units[1].module.inplace
    same_in_training(chain, model, torch.rand(5, 4))
    assert trace(lenet(), torch.rand(2, 1, 28, 28)).how == "Sequential"


def test_alexnet_in_an_eighth_of_its_width_is_a_chain_with_its_layers_names():
    model = alexnet(width=1 / 8, size=67)
    chain = trace(model, torch.rand(3, 3, 67, 67))
    assert names(chain)[:4] == ["conv1", "relu1", "norm1", "pool1"]
    same_in_training(chain, model, torch.rand(3, 3, 67, 67))


def test_the_transformer_is_traced_with_its_skips_its_tie_and_no_sizes_between_units():
    model = transformer()
    tokens = torch.randint(0, 96, (4, 10))
    chain = trace(model, tokens)
    assert chain.how == "torch.fx"
    assert chain.tied == {"head.weight": "token.weight"}
    assert {unit.name: unit.parameters.get("weight") for unit in chain.units}["head"] == "token.weight"
    skip = next(unit for unit in chain.units if unit.name == "blocks.0.add:2")
    assert skip.reads == ("blocks.0.add", "blocks.0.drop2")
    assert sum(kind == "Dropout" for kind in kinds(chain)) == 5
    same_in_training(chain, model, tokens)


def test_sizes_and_masks_are_computed_again_by_whoever_reads_them():
    def forward(self, x):
        samples, width = x.shape
        places = torch.arange(width, device=x.device)
        mask = (places[:, None] >= places).float()
        y = self.one(x) @ mask
        return self.two(y).view(samples, -1) @ mask

    model = Forward(forward, one=nn.Linear(6, 6), two=nn.Linear(6, 6))
    chain = trace(model, torch.rand(5, 6))
    assert [unit.reads for unit in chain.units] == [("inputs",), ("one", "inputs"), ("matmul",), ("two", "inputs")]
    same_in_training(chain, model, torch.rand(5, 6))


def test_functions_that_are_layers_become_layers():
    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)
        x = torch.relu(functional.dropout(torch.flatten(x, 1), 0.5, self.training))
        return functional.gelu(functional.avg_pool2d(x[:, None], 1, stride=2), approximate="tanh").flatten(1).tanh()

    model = Forward(forward, conv=nn.Conv2d(1, 3, 3))
    chain = trace(model, torch.rand(4, 1, 8, 8))
    expected = "Conv2d ReLU MaxPool2d Flatten Dropout ReLU FunctionUnit AvgPool2d GELU Flatten Tanh"
    assert kinds(chain) == expected.split()
    assert chain.units[4].module.p == 0.5
    same_in_training(chain, model, torch.rand(4, 1, 8, 8))


def test_what_torch_fx_does_not_get_through_is_exported_with_its_layers_back_in_place():
    def forward(self, x):
        if x.shape[1] > 4:  # a size that torch.fx does not know
            x = self.first(x)
        x = functional.dropout(self.norm(x), 0.3, self.training)
        x += self.first(x) * self.scale
        return {"y": self.last(functional.relu(x, inplace=True)), "nothing": None}

    model = Forward(
        forward,
        first=nn.Linear(8, 8),
        norm=nn.BatchNorm1d(8),
        last=nn.Sequential(nn.Linear(8, 2), nn.Dropout(0.1)),
        scale=nn.Parameter(torch.rand(8)),
    )
    before = model.norm.running_mean.clone()
    chain = trace(model, torch.rand(5, 8))
    assert chain.how == "torch.export"
    expected = "Linear BatchNorm1d Dropout Linear FunctionUnit ReLU Linear Dropout"
    assert kinds(chain) == expected.split()
    assert names(chain)[3] == "first:2"
    assert chain.units[0].parameters["weight"] == chain.units[3].parameters["weight"] == "first.weight"
    assert torch.equal(model.norm.running_mean, before)
    values = run_units(chain, input_values(chain, model, torch.rand(3, 8)))
    assert set(output_of(chain, values)) == {"y", "nothing"}
    assert output_of(chain, values)["nothing"] is None


def test_cuts_by_hand_name_children_that_run_one_after_the_other():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) if self.inner.weight.sum() != 1234.5 else x

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.begin = nn.Linear(4, 4)
            self.block = nn.ModuleList(Looks() for _ in range(3))
            self.end = nn.Linear(4, 2)

        def forward(self, x):
            x = self.begin(x)
            for block in self.block:
                x = block(x)
            return self.end(x)

    model = Stack()
    with pytest.raises(
        ConfigError, match=r"test_trace.py:\d+ `return self.inner\(x\) if self.inner.*cuts=\[\"block.4\"\]"
    ):
        trace(model, torch.rand(5, 4))
    chain = trace(model, torch.rand(5, 4), cuts=["block.1", "end"])
    assert (chain.how, names(chain)) == ("cuts", ["begin", "block.1", "end"])
    assert set(chain.units[1].parameters.values()) == {
        f"block.{n}.inner.{p}" for n in (1, 2) for p in ("weight", "bias")
    }
    same_in_training(chain, model, torch.rand(5, 4))
    with pytest.raises(ConfigError, match=r"has no child 'block\.7'"):
        trace(model, torch.rand(5, 4), cuts=["block.7"])
    model._modules["begin"] = model._modules.pop("begin")  # registered last, called first
    with pytest.raises(ConfigError, match="one after the other"):
        trace(model, torch.rand(5, 4), cuts=["end"])


# --- values ---


def test_several_inputs_come_as_arguments_as_keywords_or_as_one_dictionary():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x, y, mask=None):
            return self.fc(x) + (y if mask is None else y * mask)

    model, x, y = Two(), torch.rand(4, 3), torch.rand(4, 3)
    assert trace(model, (x, y)).inputs == ("x", "y")
    chain = trace(model, {"y": y, "x": x, "mask": torch.ones(3)})
    assert chain.inputs == ("y", "x", "mask")
    same_in_training(trace(model, (x, y)), model, (x, y))
    with pytest.raises(DataError, match="2 tensors"):
        input_values(chain, model, (x, y))
    whole = Forward(lambda self, batch: self.fc(batch["a"]) * batch["b"], fc=nn.Linear(3, 3))
    whole.forward = lambda batch: whole._forward(whole, batch)
    assert trace(whole, {"a": x, "b": y}).inputs == ("batch.a", "batch.b")


class Pair(NamedTuple):
    one: torch.Tensor
    more: list


def test_tuples_dictionaries_none_integers_and_unused_values_come_out_as_the_model_gives_them():
    def forward(self, x):
        low, high = self.fc(x).chunk(2, dim=1)
        top = torch.max(high, dim=1)
        self.unused(x)
        out, (hidden, _) = self.lstm(low[:, None])
        return Pair(top.values, [{"at": top.indices, "none": None, "seven": 7}, out, (hidden.transpose(0, 1),)])

    model = Forward(forward, fc=nn.Linear(4, 6), unused=nn.Linear(4, 1), lstm=nn.LSTM(3, 2, batch_first=True))
    chain = trace(model, torch.rand(5, 4))
    found = output_of(chain, run_units(chain, input_values(chain, model, torch.rand(5, 4))))
    assert isinstance(found, Pair)
    assert (found.more[0]["none"], found.more[0]["seven"], found.more[0]["at"].dtype) == (None, 7, torch.int64)
    assert "unused" in names(chain)


def set_first(x):
    x[:, 0] = 0.0


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: torch.relu_(x),
        lambda x: functional.relu(x, True),
        lambda x: functional.leaky_relu(x, 0.2, inplace=True),
        lambda x: x.mul_(2).sub_(1),
        set_first,
    ],
)
def test_what_is_changed_in_place_is_a_copy_and_all_who_read_it_later_read_that(change):
    def forward(self, x):
        kept = self.one(x)
        other = self.two(kept)
        change(kept)
        other += kept
        return self.three(other) + kept

    model = Forward(forward, one=nn.Linear(4, 4), two=nn.ReLU(), three=nn.Linear(4, 4))
    chain = trace(model, torch.rand(5, 4))
    values = input_values(chain, model, torch.rand(5, 4))
    for unit in chain.units:
        versions = {name: value._version for name, value in values.items()}
        values |= run_units(Chain((unit,), (), ()), values)
        assert versions == {name: values[name]._version for name in versions}
    assert torch.equal(output_of(chain, values), model(values["inputs"]))


def test_a_unit_by_hand_that_changes_what_it_reads_gets_a_copy():
    class Changes(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    model = nn.Sequential(nn.Linear(4, 4), Changes(), nn.Linear(4, 4))
    chain = trace(model, torch.rand(5, 4), cuts=["1", "2"])
    assert kinds(chain) == ["Linear", "CopyFirst", "Linear"]
    same_in_training(chain, model, torch.rand(5, 4))


# --- parameters ---


def test_a_layer_that_runs_twice_is_two_units_with_one_parameter():
    shared = nn.Linear(4, 4)
    chain = trace(nn.Sequential(shared, nn.ReLU(), shared), torch.rand(3, 4))
    assert [unit.parameters.get("weight") for unit in chain.units] == ["0.weight", None, "0.weight"]
    assert chain.tied == {"2.weight": "0.weight", "2.bias": "0.bias"}


def test_frozen_parameters_parametrizations_and_buffers_are_as_they_were():
    def forward(self, x):
        return self.normed(self.frozen(x)) * self.scale + self.offset

    model = Forward(
        forward,
        frozen=nn.Linear(4, 4).requires_grad_(False),
        normed=parametrizations.weight_norm(nn.Linear(4, 4)),
        scale=nn.Parameter(torch.rand(4)),
    )
    model.register_buffer("offset", torch.rand(4))
    chain = trace(model, torch.rand(3, 4))
    assert not chain.units[0].module.weight.requires_grad
    assert "normed.parametrizations.weight.original0" in chain.units[1].parameters.values()
    assert (dict(chain.units[2].parameters), dict(chain.units[2].buffers)) == ({"scale": "scale"}, {"offset": "offset"})
    same_in_training(chain, model, torch.rand(3, 4))


def test_a_model_on_the_meta_device_is_traced_by_its_shapes():
    with torch.device("meta"):
        model = alexnet()
    assert len(trace(model, torch.rand(2, 3, 227, 227)).units) == 23


def test_an_example_of_one_sample_is_enough_also_for_batch_norm():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert names(trace(model, torch.rand(1, 4))) == ["0", "1"]
    assert model[1].num_batches_tracked == 0


def test_layers_of_torch_that_hold_others_are_units_whole():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    assert kinds(trace(layer, torch.rand(4, 5, 8))) == ["TransformerEncoderLayer"]

    def forward(self, x):
        return self.fc(self.attention(x, x, x, need_weights=False)[0])

    model = Forward(forward, attention=nn.MultiheadAttention(8, 2, batch_first=True), fc=nn.Linear(8, 2))
    chain = trace(model, torch.rand(4, 5, 8))
    assert [unit.reads for unit in chain.units] == [("inputs",), ("attention",)]
    same_in_training(chain, model, torch.rand(4, 5, 8))


def test_a_class_that_is_to_be_kept_whole_is_one_unit():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return self.fc(x) + 1

    model = nn.Sequential(Odd(), nn.ReLU())
    assert names(trace(model, torch.rand(2, 3))) == ["0.fc", "0.add", "1"]
    keep_whole(Odd)
    assert kinds(trace(model, torch.rand(2, 3))) == ["Odd", "ReLU"]


# --- refused by name ---


def attention_with_dropout(self, x):
    heads = self.fc(x)[:, None, None]
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1 if self.training else 0.0)


def exported_attention_with_dropout(self, x):
    return attention_with_dropout(self, x) if x.shape[1] > 3 else x


def hooked(model):
    model.fc.register_forward_hook(lambda *_: None)


def gradient_hooked(model):
    model.fc.weight.register_hook(lambda gradient: gradient)


REFUSED = {
    "attention's dropout": (attention_with_dropout, None, 'dropout_p=0.1, .*attn_implementation="eager"'),
    "exported attention's dropout": (exported_attention_with_dropout, None, "dropout_p=0.1, .*attn_implementation"),
    "noise": (lambda self, x: self.fc(x) + torch.randn_like(x), None, "random numbers"),
    "dropout in evaluation": (lambda self, x: functional.dropout(self.fc(x), 0.5), None, "drops in evaluation too"),
    "another way in training": (lambda s, x: s.fc(x) * 2 if s.training else s.fc(x), None, "not the same in training"),
    "a number read": (lambda self, x: self.fc(x) * x.max().item(), None, "reads a number out of a tensor"),
    "values that decide": (lambda self, x: self.fc(x) if x.sum() > 0 else x, None, "can't be traced"),
    "the batch's mean": (lambda self, x: self.fc(x) - x.mean(0), None, "other samples are beside it"),
    "the batch's size": (lambda self, x: self.fc(x) / len(x.unbind(0)), None, "traced|beside it"),
    "a hook": (lambda self, x: self.fc(x), hooked, r"fc \(Linear\) has a forward hook"),
    "a gradient's hook": (lambda self, x: self.fc(x), gradient_hooked, "fc.weight has a gradient hook"),
    "a size returned": (lambda self, x: (self.fc(x), x.shape[0]), None, "neither a tensor nor a constant"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_be_exact_is_refused_by_name(what):
    forward, prepare, expected = REFUSED[what]
    model = Forward(forward, fc=nn.Linear(4, 4))
    if prepare is not None:
        prepare(model)
    with pytest.raises(ConfigError, match=expected) as error:
        trace(model, torch.rand(5, 4))
    assert "\n" not in str(error.value)
    assert model.training


def test_layers_whose_state_counts_their_calls_or_whose_shapes_are_unknown_are_refused():
    converged = parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=99)
    for layer in (parametrizations.spectral_norm(nn.Linear(4, 4)), converged):
        with pytest.raises(ConfigError, match="changes its buffer"):
            trace(nn.Sequential(layer), torch.rand(3, 4))
    with pytest.raises(ConfigError, match="has no shape yet"):
        trace(nn.Sequential(nn.LazyLinear(4)), torch.rand(3, 4))
    with pytest.raises(ConfigError, match="random numbers"):
        trace(nn.Sequential(nn.RReLU()), torch.rand(3, 4))
    norm = nn.BatchNorm1d(4)
    with pytest.raises(ConfigError, match="2 runs a batch norm that ran before"):
        trace(nn.Sequential(norm, nn.Linear(4, 4), norm), torch.rand(3, 4))
    with pytest.raises(ConfigError, match="computes nothing"):
        trace(nn.Sequential(), torch.rand(3, 4))
    with pytest.raises(ConfigError, match=r"Sequential can't be run on the example: .*mat1 and mat2"):
        trace(nn.Sequential(nn.Linear(4, 4)), torch.rand(3, 5))
    with pytest.raises(ConfigError, match="a model is split"):
        trace(torch.relu, torch.rand(3, 5))
    with pytest.raises(ConfigError, match="no sample"):
        trace(nn.Sequential(nn.Linear(4, 4)), torch.rand(0, 4))


def test_noise_from_a_generator_of_its_own_is_refused_also_by_hand():
    class Noise(nn.Module):
        generator = torch.Generator().manual_seed(1)

        def forward(self, x):
            return x + torch.rand(x.shape, generator=self.generator) if self.training else x

    with pytest.raises(ConfigError, match=r"draws from a torch\.Generator"):
        trace(nn.Sequential(nn.Linear(4, 4), Noise()), torch.rand(5, 4), cuts=["1"])
    with torch.device("meta"), pytest.raises(ConfigError, match="random numbers"):
        trace(nn.Sequential(nn.Linear(4, 4), nn.RReLU()), torch.rand(5, 4))


def test_a_view_that_is_changed_behind_the_graphs_back_is_refused():
    def forward(self, x):
        y = self.fc(x)
        y[:, :2].mul_(0)
        return y

    with pytest.raises(ConfigError, match="does not give what it gives whole"):
        trace(Forward(forward, fc=nn.Linear(4, 4)), torch.rand(5, 4))
