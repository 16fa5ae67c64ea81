"""Random programs that call `fit`: one loop by hand, and the same on several devices of one process."""

import warnings

import torch
from random_batches import WIDTH
from random_layers import make_layer, through
from random_moves import NOT_YET
from torch import nn
from torch.nn import functional

import gradtide
from gradtide.train.steering.callbacks import EpochEnd

EDITS = ("clamp", "freeze", "shrink") if "fit edits" not in NOT_YET else ()


class Layers(nn.Module):
    def __init__(self, kinds, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.kinds = [*kinds, None]
        self.layers = nn.ModuleList(make_layer(kind) for kind in self.kinds)
        self.double()

    def forward(self, x):
        hidden = x
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden = through(layer, kind, hidden, x)
        return hidden


def data_of(case):
    draw = torch.Generator().manual_seed(case["seed"])
    x = torch.randn(case["samples"], WIDTH, dtype=torch.float64, generator=draw)
    return x, torch.randint(WIDTH, (case["samples"],), generator=draw)


def _optimizer(case, parameters):
    return getattr(torch.optim, case["optimizer"])(parameters, lr=case["lr"])


@torch.no_grad()
def _edit(case, net):
    layer = net.layers[-1]
    match case.get("edit"):
        case "clamp":
            layer.weight.clamp_(-0.1, 0.1)
        case "shrink":
            layer.weight.mul_(0.5)
        case "freeze" if len(net.layers) > 1:  # else nothing is left to be trained
            net.layers[0].requires_grad_(False)


def by_hand(case):
    """As a loop of plain PyTorch: the loss of each epoch, and the parameters."""
    net, (x, y), losses = Layers(case["kinds"], case["seed"]), data_of(case), []
    rule = _optimizer(case, net.parameters())
    size = case["batch"] * case["accumulate"]
    for _ in range(case["epochs"]):
        seen = 0.0
        for begin in range(0, len(x), size):
            rule.zero_grad()
            outputs, labels = net(x[begin : begin + size]), y[begin : begin + size]
            loss = functional.cross_entropy(outputs, labels)
            loss.backward()
            if "clip_norm" in case:
                nn.utils.clip_grad_norm_(net.parameters(), case["clip_norm"])
            rule.step()
            seen += loss.item() * len(labels)
        losses.append(seen / len(x))
        _edit(case, net)
    return losses, [p.detach().clone() for p in net.parameters()]


def by_fit(case):
    net, (x, y) = Layers(case["kinds"], case["seed"]), data_of(case)
    batches = [(x[i : i + case["batch"]], y[i : i + case["batch"]]) for i in range(0, len(x), case["batch"])]
    options = {"clip_norm": case["clip_norm"]} if "clip_norm" in case else {}
    if case.get("edit"):
        options["callbacks"] = [lambda event: _edit(case, event.model) if isinstance(event, EpochEnd) else None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = gradtide.fit(
            net,
            lambda: iter(batches),
            devices=case["devices"],
            epochs=case["epochs"],
            accumulate=case["accumulate"],
            optimizer=lambda parameters: _optimizer(case, parameters),
            strategy=case["strategy"],
            progress=False,
            **options,
        )
    return history.loss, [p.detach().clone() for p in net.parameters()]
