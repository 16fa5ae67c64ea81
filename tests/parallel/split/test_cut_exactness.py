"""What would come out otherwise is refused by name; batch norm over copies is the whole batch's."""

import threading

import pytest
import torch
from shard_reference import sequential_chain
from torch import nn

from gradtide.errors import ConfigError, DataError
from gradtide.parallel.split.cut.exactness import check_exact, refusals
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.schedule.step.layout import Layout, Stage


def layout_of(units: int, copies: int = 1, shards: int = 1, micro_batches: int = 1) -> Layout:
    names = tuple(f"u{i}" for i in range(units))
    stage = Stage(0, units, tuple(range(copies * shards)), shards)
    return Layout(names, (stage,), micro_batches)


class OwnDropout(nn.Dropout):
    """Somebody's own."""


@pytest.mark.parametrize(
    "layer",
    [
        nn.AlphaDropout(),
        nn.FeatureAlphaDropout(),
        OwnDropout(),
        nn.RReLU(),
        nn.LSTM(3, 3, num_layers=2, dropout=0.1),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.TransformerEncoderLayer(4, 2),
    ],
)
def test_layers_that_draw_random_numbers_of_their_own_are_refused_under_every_layout(layer):
    chain = sequential_chain(nn.Sequential(nn.Identity(), layer))
    with pytest.raises(ConfigError, match=r"u0\.1.* \((\w*Dropout|RReLU|LSTM|MultiheadAttention)\)"):
        check_exact(chain, layout_of(1))
    with pytest.raises(ConfigError, match=r"u0\.1"):
        cut_stage(chain, Stage(0, 1, (0,)), 0)


def test_layers_without_random_numbers_and_dropout_pass():
    layers = [
        nn.LSTM(3, 3),
        nn.MultiheadAttention(4, 2),
        nn.Dropout2d(),
        nn.Dropout(),
        nn.Embedding(3, 3, max_norm=1.0),
    ]
    check_exact(sequential_chain(*layers), layout_of(5, micro_batches=4))


@pytest.mark.parametrize(
    ("copies", "micro_batches", "batch_norm", "message"),
    [
        (1, 1, "", None),
        (2, 1, "", r"u0 \(BatchNorm2d\) would have statistics of each of 2 copies; say batch_norm='shared'"),
        (2, 1, "each", "2 copies"),
        (2, 1, "shared", None),
        (1, 4, "", r"4 micro-batches; take one micro-batch, or say batch_norm='each'"),
        (1, 4, "shared", "4 micro-batches"),
        (1, 4, "each", None),
        (2, 4, "", r"2 copies.*\(and 1 more of the kind\)"),
        (1, 1, "none", "choose 'shared' or 'each'"),
    ],
)
def test_batch_norm_is_exact_or_refused(copies, micro_batches, batch_norm, message):
    chain = sequential_chain(nn.BatchNorm2d(3))
    layout = layout_of(1, copies, 1, micro_batches)
    if message is None:
        check_exact(chain, layout, batch_norm)
    else:
        with pytest.raises(ConfigError, match=message):
            check_exact(chain, layout, batch_norm)


def test_batch_norm_that_is_frozen_may_be_split_in_any_way():
    chain = sequential_chain(nn.BatchNorm2d(3).eval())
    assert refusals(chain, layout_of(1, 2, 1, 4)) == []
    chain = sequential_chain(nn.BatchNorm2d(3, track_running_stats=False).eval())  # takes the batch's all the same
    assert len(refusals(chain, layout_of(1, 2, 1, 4))) == 2


@pytest.mark.parametrize(
    ("layer", "copies", "micro_batches", "message"),
    [
        (nn.SyncBatchNorm(3), 1, 1, "use nn.BatchNorm"),
        (nn.InstanceNorm2d(3, track_running_stats=True), 1, 2, "keeps statistics of the whole batch"),
        (nn.Embedding(3, 3, sparse=True), 1, 1, "sparse=False"),
        (nn.Embedding(3, 3, scale_grad_by_freq=True), 1, 2, "one micro-batch"),
        (nn.Embedding(3, 3, max_norm=1.0), 2, 1, "no max_norm"),
    ],
)
def test_other_layers_that_look_at_the_whole_batch_are_refused(layer, copies, micro_batches, message):
    with pytest.raises(ConfigError, match=message):
        check_exact(sequential_chain(layer), layout_of(1, copies, 1, micro_batches))


def test_a_parameter_of_several_stages_is_whole_in_all_or_refused():
    chain = sequential_chain(nn.Linear(4, 4), nn.Linear(4, 4))
    chain.units[1].module.weight = chain.units[0].module.weight
    chain.units[1].parameters["weight"] = "0.weight"
    stages = (Stage(0, 1, (0, 1), 2, ways=(("u0", "columns"),)), Stage(1, 2, (2,)))
    with pytest.raises(ConfigError, match=r"u0 and u1 share 0\.weight across stages"):
        check_exact(chain, Layout(("u0", "u1"), stages))
    check_exact(chain, Layout(("u0", "u1"), (Stage(0, 1, (0, 1), 2), Stage(1, 2, (2,)))))  # by default it stays whole


class Adding:
    """Adds up what all copies bring, in their order."""

    def __init__(self, copies: int) -> None:
        self.barrier, self.brought = threading.Barrier(copies), [torch.empty(0)] * copies

    def of(self, copy: int):
        def add_up(tensor: torch.Tensor) -> torch.Tensor:
            self.brought[copy] = tensor
            self.barrier.wait(30)
            total = sum(self.brought[1:], start=self.brought[0])
            self.barrier.wait(30)
            return total

        return add_up


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, affine=False)])
@pytest.mark.parametrize("shares", [(3, 4), (5, 1, 1), (7, 0)])
def test_copies_that_share_batch_norm_have_the_whole_batchs(norm, shares):
    torch.manual_seed(2)
    norm = norm.double()
    chain = sequential_chain(nn.Sequential(nn.Identity(), norm))  # within a unit
    x = torch.randn(7, 3, *([4, 2] if isinstance(norm, nn.BatchNorm2d) else []), dtype=torch.float64)
    gradient = torch.randn_like(x)
    stage = Stage(0, 1, tuple(range(len(shares))))
    local = [cut_stage(chain, stage, 0, share_batch_norm=True) for _ in shares]
    whole = x.clone().requires_grad_()
    expected = norm(whole)
    expected.backward(gradient)
    adding = Adding(len(shares))
    parts = [part.clone().requires_grad_() for part in x.split(shares)]
    made: list[torch.Tensor] = [torch.empty(0)] * len(shares)

    def run(copy: int) -> None:
        (shared,) = local[copy].shared_norms
        shared.add_up = adding.of(copy)
        made[copy] = local[copy].segments[0].units[0].module(parts[copy])
        made[copy].backward(gradient.split(shares)[copy])

    threads = [threading.Thread(target=run, args=(copy,)) for copy in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(torch.cat(made), expected, **close)
    torch.testing.assert_close(torch.cat([part.grad for part in parts]), whole.grad, **close)
    for number, (_, parameter) in enumerate(norm.named_parameters()):
        total = sum(stage.parameters[number].tensor.grad for stage in local)
        torch.testing.assert_close(total, parameter.grad, **close)
        parameter.grad = None
    for stage_ in local:
        for buffer, (_, wanted) in zip(stage_.buffers, norm.named_buffers(), strict=True):
            torch.testing.assert_close(buffer.tensor, wanted, **close)
    norm.reset_running_stats()


def test_batch_norm_of_one_copy_is_left_as_it_is():
    chain = sequential_chain(nn.BatchNorm1d(3))
    stage = cut_stage(chain, Stage(0, 1, (0,)), 0, share_batch_norm=True)
    assert stage.shared_norms == []
    assert type(stage.segments[0].units[0].module) is nn.BatchNorm1d


def test_batch_norm_of_one_value_is_refused_as_torch_does():
    chain = sequential_chain(nn.BatchNorm1d(3))
    (shared,) = cut_stage(chain, Stage(0, 1, (0, 1)), 0, share_batch_norm=True).shared_norms
    shared.add_up = lambda tensor: tensor
    with pytest.raises(DataError, match="larger batch"):
        shared(torch.ones(1, 3))
