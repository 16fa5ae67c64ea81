"""Several batches as one step: what one process gives with the batches put together, whoever computes which part."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.errors import ConfigError, DataError
from gradtide.events import BatchDone

sys.path.insert(0, str(Path(__file__).parent))

import fit_cases


def plain(case, batch, epochs=2):
    """One process, PyTorch alone, with batches of this many samples."""
    net, targets, own = fit_cases.begin(case), fit_cases.CASES[case][1], fit_cases.CASES[case][2]
    loss = own.get("loss", functional.cross_entropy)
    optimizer = torch.optim.SGD(net.parameters(), lr=own.get("lr", 0.1), momentum=0.9)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(fit_cases.X, targets), batch):
            optimizer.zero_grad()
            loss(net(x), y).backward()
            optimizer.step()
    return [p.detach() for p in net.parameters()]


def fitted(case, batch=4, **options):
    """25 samples in batches of 4: the last batch has one, and with 3 or 4 of them to a step the last step has fewer."""
    net, targets = fit_cases.begin(case), fit_cases.CASES[case][1]
    settings = {"optimizer": partial(torch.optim.SGD, momentum=0.9), "lr": 0.1, "epochs": 2}
    settings |= fit_cases.CASES[case][2] | options
    events = []
    gradtide.fit(net, DataLoader(TensorDataset(fit_cases.X, targets), batch), emit=events.append, **settings)
    return [p.detach() for p in net.parameters()], [event for event in events if isinstance(event, BatchDone)]


def assert_alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize(("devices", "accumulate"), [(1, 4), (3, 3), (2, 4)])
@pytest.mark.parametrize("case", ["class weights", "tokens of one's own", "sum", "mean of one's own"])
def test_a_step_of_several_batches_is_that_of_all_their_samples(case, devices, accumulate):
    found, steps = fitted(case, devices=devices, accumulate=accumulate)
    assert_alike(found, plain(case, 4 * accumulate))
    assert [step.samples for step in steps[: len(steps) // 2]] == ([16, 9] if accumulate == 4 else [12, 12, 1])


def test_a_device_never_computes_more_samples_at_once_than_its_part_of_a_batch():
    seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    net, x = Watched(5, 4).double(), fit_cases.X
    gradtide.fit(net, (x, fit_cases.LABELS), batch_size=8, devices=2, accumulate=2, lr=0.1)
    assert sorted(seen) == [2, 2, 2, 3, 4, 4, 4, 4]  # 16 samples, then 9


def test_batch_normalisation_over_all_devices_meets_in_every_piece():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)).double()
    gradtide.fit(
        net, (fit_cases.X, fit_cases.LABELS), batch_size=9, devices=4, accumulate=3, lr=0.1, sync_batch_norm=True
    )
    assert int(net[1].num_batches_tracked) == 3  # 25 samples: 9 + 9 + 7 are one step, on each device in 3 pieces


def test_dropout_is_drawn_anew_in_every_piece_and_repeats():
    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(), nn.Linear(6, 4)).double()
        gradtide.fit(net, (fit_cases.X, fit_cases.LABELS), batch_size=5, devices=2, accumulate=2, lr=0.1, epochs=2)
        return net[0].weight.detach()

    assert torch.equal(run(), run())


@pytest.mark.parametrize("accumulate", [0, -1, 1.5, True])
def test_no_batches_at_all_make_no_step(accumulate):
    with pytest.raises(ConfigError, match=r"accumulate=.* makes no sense"):
        gradtide.fit(nn.Linear(5, 4).double(), (fit_cases.X, fit_cases.LABELS), accumulate=accumulate)


def test_batches_of_different_shapes_are_refused_by_name():
    batches = [(torch.ones(2, 3 + number), torch.zeros(2).long()) for number in range(2)]
    loader = DataLoader(batches, batch_size=None)
    with pytest.raises(DataError, match=r"the inputs of one are \(2, 3\) .* and of another \(2, 4\)"):
        gradtide.fit(nn.Linear(3, 2), loader, accumulate=2)


def test_a_run_goes_on_with_as_many_batches_a_step_as_before(tmp_path):
    data = (fit_cases.X, fit_cases.LABELS)
    options = {"batch_size": 4, "lr": 0.1, "accumulate": 2}
    kept = gradtide.train.Checkpoints(str(tmp_path), every=1, resume=True)
    whole, cut = (fit_cases.begin("ignored") for _ in range(2))
    gradtide.fit(whole, data, epochs=2, **options)
    gradtide.fit(cut, data, epochs=1, checkpoints=kept, **options)
    again = fit_cases.begin("ignored")
    gradtide.fit(again, data, epochs=2, checkpoints=kept, **options)
    assert_alike(list(again.parameters()), [p.detach() for p in whole.parameters()])
    with pytest.raises(ConfigError, match="was made with accumulate 2, not 1"):
        gradtide.fit(again, data, epochs=2, checkpoints=kept, batch_size=4, lr=0.1)
