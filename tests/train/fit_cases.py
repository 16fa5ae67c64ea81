"""What fit is to train alike on one device, on several, and on several workers; and a script that trains it on workers.

fit_cases.py FOLDER ADDRESSES: every case along every way; the addresses, as JSON, are of a store for each case.
"""

import json
import sys
from collections import OrderedDict
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.events import BatchDone

SAMPLES, BATCH, CLASSES, TOKENS = 25, 8, 4, 6
RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(SAMPLES, 5, generator=RANDOM, dtype=torch.float64)
LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=RANDOM)
VALUES = torch.randn(SAMPLES, CLASSES, generator=RANDOM, dtype=torch.float64)
WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)
# All of the first batch's second half is ignored, so that one of two devices, or workers, has nothing to learn from.
IGNORED = LABELS.where(torch.rand(SAMPLES, generator=RANDOM) < 0.6, -100)
IGNORED[0], IGNORED[BATCH // 2 : BATCH], IGNORED[-1] = 1, -100, 2
# Sentences of other lengths each, the rest is padding.
LENGTHS = torch.randint(1, TOKENS + 1, (SAMPLES, 1), generator=RANDOM)
SENTENCES = torch.randint(0, CLASSES, (SAMPLES, TOKENS), generator=RANDOM).where(torch.arange(TOKENS) < LENGTHS, -100)


def own_mean(outputs, targets):
    return (outputs - targets).pow(4).mean()


def own_tokens(outputs, targets):
    """As people write it for a language model, with another number for padding."""
    return functional.cross_entropy(outputs.transpose(1, 2).flatten(0, 1), targets.flatten(), ignore_index=-100)


def own_sum(outputs, targets):
    return (outputs - targets).abs().sum()


def count_tokens(targets):
    return (targets != -100).sum()


class PerToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, CLASSES * TOKENS)

    def forward(self, x):
        return self.linear(x).view(len(x), CLASSES, TOKENS)


def per_sample():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def groups(parameters):
    parameters = list(parameters)
    return Adam([{"params": parameters[:1], "lr": 0.03}, {"params": parameters[1:], "lr": 0.002}])


CASES = {  # the model, its targets, and what fit takes
    "ignored": (per_sample, IGNORED, {}),
    "class weights": (
        per_sample,
        IGNORED,
        {"loss": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=-100, label_smoothing=0.1)},
    ),
    "another number for ignored": (per_sample, LABELS, {"loss": partial(functional.cross_entropy, ignore_index=2)}),
    "tokens": (PerToken, SENTENCES, {"loss": nn.CrossEntropyLoss()}),
    "tokens of one's own": (PerToken, SENTENCES, {"loss": own_tokens, "loss_terms": count_tokens}),
    "sum": (per_sample, IGNORED, {"loss": nn.CrossEntropyLoss(reduction="sum"), "lr": 0.01}),
    "sum of squares": (per_sample, VALUES, {"loss": partial(functional.mse_loss, reduction="sum"), "lr": 0.01}),
    "sum of one's own": (per_sample, VALUES, {"loss": own_sum, "loss_terms": "sum", "lr": 0.01}),
    "mean of one's own": (per_sample, VALUES, {"loss": own_mean}),
    "probabilities": (per_sample, VALUES.softmax(1), {"loss": partial(functional.cross_entropy, weight=WEIGHT)}),
    "per batch": (
        lambda: nn.Sequential(per_sample(), nn.LogSoftmax(1)),
        VALUES.softmax(1),
        {"loss": nn.KLDivLoss(reduction="batchmean")},
    ),
    "log likelihood": (
        lambda: nn.Sequential(per_sample(), nn.LogSoftmax(1)),
        LABELS,
        {"loss": partial(functional.nll_loss, weight=WEIGHT, ignore_index=1)},
    ),
    "a function with groups": (per_sample, VALUES, {"loss": "mse", "lr": None, "optimizer": groups}),
    "an optimizer": (per_sample, VALUES, {"loss": "huber", "lr": None, "optimizer": "its own"}),
}
OVER_SERVERS = ["class weights", "tokens of one's own", "sum", "an optimizer"]


def begin(case):
    """Parameters have names of their own in each case: on servers all cases are beside each other."""
    torch.manual_seed(1)
    return nn.Sequential(OrderedDict([(case.replace(" ", "-").replace("'", ""), CASES[case][0]())])).double()


def train(case, **options):
    net, targets, own = begin(case), CASES[case][1], dict(CASES[case][2])
    settings = {"optimizer": partial(SGD, momentum=0.9), "lr": 0.1, "epochs": 2, "warmup_epochs": 1, **own, **options}
    optimizer = None
    if settings["optimizer"] == "its own":
        optimizer = settings["optimizer"] = groups(net.parameters())
    losses = []

    def emit(event):
        if isinstance(event, BatchDone):
            losses.append(event.loss)

    data = TensorDataset(X, targets)
    history = gradtide.fit(net, DataLoader(data, BATCH), test_data=DataLoader(data, 6), emit=emit, **settings)
    state = [] if optimizer is None else [optimizer.state[p].get("exp_avg") for p in net.parameters()]
    return {
        "values": [p.detach() for p in net.parameters()],
        "state": state,
        "history": history.loss,
        "tests": history.test_loss,
        "losses": losses,
    }


def main():
    folder, addresses = sys.argv[1], json.loads(sys.argv[2])
    rank = gradtide.sync.current_job().rank
    found = {(case, way): train(case, sync=way) for case in CASES for way in ("auto", "ring")}
    found |= {(case, "auto, 2 devices"): train(case, devices=2) for case in ("class weights", "sum")}
    for case, address in addresses.items():
        found[case, "servers"] = train(case, sync=gradtide.Servers("bsp", address=address), warmup_epochs=0)
    torch.save(found, f"{folder}/found-{rank}.pt")


if __name__ == "__main__":
    main()
