"""What people write that a split model must compute as one device does, or refuse in a line."""

import copy
import gc
import threading

import failing_runs as f
import pytest
import split_runs as runs
import torch
import torch.nn.functional as F
from torch import nn

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.layout import Layout, Stage


class Pair(nn.Module):
    """Two linear layers, and something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.between = nn.Linear(4, 4).double(), nn.Linear(4, 3).double(), between

    def forward(self, x, more=1.0):
        return self.b(self.between(self.a(x), more))


def by_more(x, more):
    return x * more


def split(model, layout="a | ..", devices=2, optimizer=torch.optim.SGD, **options):
    return gradtide.ModelParallel(
        model, optimizer(model.parameters(), lr=0.1), split=layout, devices=devices, **options
    )


def samples(count, *shape):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *(shape or (4,)), generator=generator, dtype=torch.float64)


def labels(count):
    return torch.arange(count) % 3


def farthest(model, reference):
    return max(float((model.state_dict()[k] - v).abs().max()) for k, v in reference.state_dict().items())


# --- batches that are made otherwise than the first ---


def test_a_number_beside_the_inputs_that_changes_is_refused():
    model = split(Pair(by_more)).eval()
    x = samples(4)
    assert torch.allclose(model(x=x, more=2.0), Pair(by_more)(x, 2.0))
    with pytest.raises(DataError, match=r"comes with 3\.0 where the one that the model was traced with had 2\.0"):
        model(x=x, more=3.0)
    model.close()


@pytest.mark.parametrize("sizes", [(6, 4), (8, 4, 5)])
def test_an_input_as_long_as_a_batch_is_no_row_a_sample_for_that(sizes):
    weights = samples(4)[0]
    model, plain = split(Pair(by_more), "..a x2 | .. x4", 6, micro_batches=2), Pair(by_more)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for size in sizes:
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(samples(size), weights), labels(size))
        loss.backward()
        optimizer.step()
        assert float(model.step((samples(size), weights), labels(size), "cross_entropy")) == pytest.approx(loss.item())
    assert farthest(model, plain) < 1e-12
    model.close()


def test_an_input_that_gets_rows_later_is_refused():
    model = split(Pair(by_more))
    model.step((samples(4), samples(1)), labels(4), "cross_entropy")
    with pytest.raises(DataError, match="whether it has a row a sample"):
        model.step((samples(4), samples(4)), labels(4), "cross_entropy")
    model.close()


class OfLength(nn.Module):
    """What it makes depends on the length of its input, in a way that torch.fx does not see."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3).double()

    def forward(self, x):
        h = self.a(x)
        return sum(h[:, place] * place for place in range(x.shape[1]))


def test_another_length_than_torch_export_saw_is_refused():
    model = split(OfLength(), "..a | ..")
    model.step(samples(4, 3, 4), labels(4), "cross_entropy")
    with pytest.raises(DataError, match=r"x has shape \(4, 5, 4\), and had \(4, 3, 4\)"):
        model.step(samples(4, 5, 4), labels(4), "cross_entropy")
    model.close()


# --- values that are not rows of samples ---


class TimeFirst(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.dropout, self.head = nn.GRU(4, 5).double(), nn.Dropout(dropout), nn.Linear(5, 3).double()

    def forward(self, x):
        return self.head(self.dropout(self.rnn(x.transpose(0, 1))[0])).mean(0)


@pytest.mark.parametrize("times", [2, 4])
def test_values_with_time_first_go_to_other_copies_never_even_if_as_long(times):
    model = split(TimeFirst(), "..rnn | .. x2", 3)
    with pytest.raises(ConfigError, match="no row a sample"):
        model.step(samples(4, times, 4), labels(4), "cross_entropy")
    model.close()


def test_dropout_of_values_with_time_first_is_refused_even_if_as_long():
    model = split(TimeFirst(0.5), "..rnn | ..", 2, micro_batches=2)
    with pytest.raises(ConfigError, match=r"dropout layer dropout reads .* which has no row a sample"):
        model.step(samples(8, 4, 4), labels(8), "cross_entropy")
    model.close()


@pytest.mark.parametrize(
    "between",
    [
        lambda x, more: x * (x.abs().max() > 1.0),
        lambda x, more: x / x.detach().abs().amax(),
        lambda x, more: x + (x.mean(0) ** 2).sum() * 1e-3,
    ],
    ids=["a threshold", "a scale", "a mean"],
)
def test_what_looks_at_all_samples_is_refused(between):
    model = split(Pair(between))
    with pytest.raises(ConfigError, match=r"all samples together|other samples are beside it"):
        model.step(samples(8), labels(8), "cross_entropy")


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def without_gradient(x, more):
    with torch.no_grad():
        scale = x.tanh()
    return x * scale


@pytest.mark.parametrize("between", [without_gradient, lambda x, more: Reversed.apply(x)], ids=["no_grad", "reversed"])
def test_gradients_that_tracing_does_not_see_are_refused(between):
    with pytest.raises(ConfigError, match=r"a\.bias gets another gradient when the model is taken apart"):
        split(Pair(between)).step(samples(8), labels(8), "cross_entropy")


def test_looking_at_gradients_leaves_those_that_are_there():
    net = Pair(by_more)
    F.cross_entropy(net(samples(4)), labels(4)).backward()
    before = [parameter.grad.clone() for parameter in net.parameters()]
    trace(net, samples(4))
    assert all(map(torch.equal, before, [parameter.grad for parameter in net.parameters()]))


# --- layers ---


def test_words_that_there_are_not_are_told_when_the_vocabulary_is_cut():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 3))
    layout = Layout(("0", "1"), (Stage(0, 2, (0, 1), 2, ways=(("0", "rows"),)),))
    model = split(model, layout).eval()
    assert model(torch.arange(8)).shape == (8, 3)
    with pytest.raises(IndexError, match="words are 0 to 7"):
        model(torch.tensor([0, 8]))
    model.close()


def test_tied_words_with_a_largest_norm_are_refused():
    net = nn.Sequential(nn.Embedding(8, 4, max_norm=0.5), nn.Linear(4, 8, bias=False))
    net[1].weight = net[0].weight
    with pytest.raises(ConfigError, match="other units share them; take no max_norm"):
        split(net, "0 | 1").step(torch.arange(8), torch.arange(8), "cross_entropy")


def test_complex_parameters_are_clipped_as_in_torch():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))

        def forward(self, x):
            return (x.to(torch.complex128) @ self.w).abs()

    plain = Turned()
    model = split(copy.deepcopy(plain), "x2", clip_norm=0.01)
    model.step(samples(5), labels(5), "cross_entropy")
    F.cross_entropy(plain(samples(5)), labels(5)).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert farthest(model, plain) < 1e-12
    model.close()


# --- states ---


def test_a_state_loads_beside_buffers_that_are_in_no_state():
    net = Pair(by_more)
    net.register_buffer("scale", torch.rand(4).double(), persistent=False)
    net.between = lambda x, more: x * net.scale
    before = copy.deepcopy(net.state_dict())
    model = split(net)
    model.step(samples(4), labels(4), "cross_entropy")
    model.load_state_dict(before)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    model.close()


def test_a_state_loaded_before_the_first_step_is_that_of_a_model_on_the_meta_device():
    state = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).state_dict()
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model = split(net, "0 | ..")
    model.load_state_dict(state)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    model.eval()(samples(4).float())
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    model.close()


def test_optimizer_states_of_others_are_refused_before_and_after_the_first_step():
    model = split(Pair(by_more), optimizer=torch.optim.Adam)
    wider = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    other = torch.optim.Adam(wider.parameters())
    wider(torch.rand(2, 5)).sum().backward()
    other.step()
    for _ in range(2):
        with pytest.raises(DataError, match=r"exp_avg of a.weight has shape \(4, 5\) there"):
            model.load_optimizer_state_dict(other.state_dict())
        with pytest.raises(DataError, match="the state is of another optimizer: it has dampening"):
            model.load_optimizer_state_dict(torch.optim.SGD(Pair(by_more).parameters(), lr=0.1).state_dict())
        with pytest.raises(DataError, match="no optimizer's state"):
            model.load_optimizer_state_dict({})
        with pytest.raises(DataError, match=r"a\.weight is a NoneType there"):
            model.load_state_dict({**model.state_dict(), "a.weight": None})
        model.step(samples(4), labels(4), "cross_entropy")
    model.close()


# --- what devices would not know of ---


def test_gradients_from_before_the_first_step_are_refused():
    net = Pair(by_more)
    F.cross_entropy(net(samples(4)), labels(4)).backward()
    with pytest.raises(ConfigError, match=r"a\.weight has a gradient already"):
        split(net).step(samples(4), labels(4), "cross_entropy")


def test_modules_put_into_evaluation_behind_the_split_models_back_are_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    model = split(net, "0 | ..")
    model.step(samples(4), labels(4), "cross_entropy")
    net[1].eval()
    with pytest.raises(ConfigError, match="put into training or evaluation since the model was split"):
        model.step(samples(4), labels(4), "cross_entropy")
    model.train().step(samples(4), labels(4), "cross_entropy")
    model.close()


@pytest.mark.parametrize(
    "options", [{"micro_batches": 0}, {"micro_batches": 2.5}, {"clip_norm": float("nan")}, {"clip_norm": "1"}]
)
def test_numbers_that_are_none_are_refused(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is .*; it must be a"):
        split(Pair(by_more), **options)


def test_a_stage_that_says_something_twice_is_refused():
    with pytest.raises(ConfigError, match="says its shards twice"):
        split(Pair(by_more), "a /2 /3 | ..").step(samples(4), labels(4), "cross_entropy")


def test_a_split_model_is_not_copied():
    with pytest.raises(ConfigError, match="not copied or pickled"):
        copy.deepcopy(split(Pair(by_more)))


def test_a_batch_without_a_sample_is_refused_in_evaluation_too():
    model = split(Pair(by_more)).eval()
    model(samples(4))
    with pytest.raises(DataError, match="no sample in it"):
        model(samples(0))
    model.close()


def test_threads_end_with_a_model_that_nobody_has_closed():
    before = threading.active_count()
    for _ in range(3):
        split(Pair(by_more)).step(samples(4), labels(4), "cross_entropy")
        gc.collect()
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("rate", "rank 1's optimizer has other options than rank 0's"),
        ("steps", "rank 1 has seed 0 and 7 steps, and rank 0 seed 0 and 1"),
        ("state", "rank 1 has loaded another state than rank 0"),
        ("samples", "rank 1 was given another batch than rank 0"),
        ("call", "rank 1 calls model.step() while rank 0 calls model.state_dict()"),
    ],
)
def test_ranks_that_want_different_things_are_told_at_once(device_processes, what, line):
    for told in device_processes.run(f.wanting_others, 2, runs.new_name(), what):
        assert line in told
